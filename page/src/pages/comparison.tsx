// Two sides against each other: the verdict first, then what changed, how sure that is, and what differs exactly.

import type { ComponentChildren } from "preact";
import { Lines } from "../charts";
import { partColour } from "../colours";
import { bytes, DASH, duration, percent, plain, shown, sign } from "../format";
import type { Compared, Page, PartChange } from "../model";
import { open, theme } from "../state";
import { OneResult } from "./results";

/** Rows of each table of the overview; its page has all. */
const MOST = 10;
/** Per cent of the steps that are drawn; the table has all. */
const DRAWN = 90;
const WHAT: Record<string, string> = { allocated: "peak", reserved: "reserved", taken: "taken a step" };

const side = (of: 0 | 1): string => partColour(of ? "computing" : "communication", theme.value);
const share = (change: number): string => sign(Math.round(1000 * change) / 10, (value) => `${value.toFixed(1)} %`);
const time = (change: number | null): string => (change === null ? DASH : sign(change, duration));
const way = (change: number | null): string => (change ? (change > 0 ? "number more" : "number less") : "number");

export function Overview({ content }: { content: Compared }) {
  const { comparison: of } = content;
  const { level, common } = of;
  const peak = of.memory.find((row) => row.what === "allocated" && row.a !== null && row.b !== null);
  const to = (name: string): string => (content.pages.some((one) => one.name === name && !one.absent) ? name : "");
  return (
    <>
      <div class="verdict"><h1>{shown(content.verdict, 600)}</h1></div>
      <div class="tiles">
        {level && <Tile name="a step of A" value={duration(level.a_ns)} note={shown(content.sides[0], 24)} to={to("steps")} />}
        {level && <Tile name="a step of B" value={duration(level.b_ns)} note={shown(content.sides[1], 24)} to={to("steps")} />}
        {level && <Tile name="change of the step" value={share(level.change)} note={level.low !== null && level.high !== null ? `${share(level.low)} … ${share(level.high)}` : "one run a side"} to={to("steps")} />}
        {common.change !== null && <Tile name="all parts together" value={share(common.change)} note={Math.abs(common.change) < 0.0005 ? "" : "the machine, or everything"} to={to("operators")} />}
        {peak && <Tile name={`memory peak ${shown(peak.device, 12)}`} value={`${bytes(peak.a)} → ${bytes(peak.b)}`} note={peak.a ? share(peak.b! / peak.a - 1) : ""} to={to("exact")} />}
      </div>
      {to("operators") && <Changes content={content} />}
      <div class="halves">
        {to("steps") && <section aria-label="Steps of both"><h2>Steps of both, from the quickest to the longest <All to="steps" /></h2><StepLines content={content} /></section>}
        {of.phases.length > 0 && <section aria-label="Phases of the step"><h2>Phases of the step <All to="operators" result="phases" /></h2><Phases content={content} /></section>}
        {to("exact") && <section aria-label="Exact differences"><h2>What differs exactly <All to="exact" /></h2><Exact content={content} /></section>}
        <section aria-label="What to know first">
          <h2>What to know first <All to="losses" /></h2>
          <Notes content={content} />
        </section>
      </div>
    </>
  );
}

const All = ({ to, result }: { to: string; result?: string }) => <button class="quiet" onClick={() => open(to, result ? { r: result } : {})}>table</button>;

function Tile({ name, value, note, to }: { name: string; value: string; note: string; to: string }) {
  return <button class="tile" disabled={!to} onClick={() => open(to)}><b>{value}</b><span>{name}</span><small>{note}</small></button>;
}

/** The parts that surely changed, with their intervals; without one, those that changed most. */
function Changes({ content }: { content: Compared }) {
  const { operators, only_a, only_b } = content.comparison;
  const all = [...operators, ...only_a, ...only_b].sort((one, other) => Number(other.sure) - Number(one.sure) || Math.abs(other.change_ns) - Math.abs(one.change_ns));
  const sure = all.filter((part) => part.sure).length;
  const rows = (sure ? all.filter((part) => part.sure) : all).slice(0, MOST);
  const reach = Math.max(1, ...rows.map((part) => Math.abs(part.change_ns))) * 1.25;
  if (!rows.length) return null;
  return (
    <section aria-label="What became slower or faster">
      <h2>What became slower or faster <All to="operators" result="parts" /></h2>
      <p class="muted">{sure ? `${sure} of ${all.length} parts changed for sure, more than all of them together.` : `No part changed for sure more than all of them together. The largest of ${all.length}:`}</p>
      <table class="simple changes">
        <thead><tr><th scope="col">part</th><th scope="col">where</th><th scope="col" class="number">calls</th><th scope="col" class="number">A</th><th scope="col" class="number">B</th><th scope="col" class="number">own change</th><th scope="col">faster · slower</th><th scope="col">sure</th></tr></thead>
        <tbody>{rows.map((part, i) => (
          <tr key={i}>
            <td class="name" title={shown(part.name, 2000)}>{shown(part.name, 90)}</td>
            <td class="name muted" title={shown(part.module || part.phase, 2000)}>{shown(part.module || part.phase, 60) || DASH}</td>
            <td class="number">{part.calls_a === part.calls_b ? plain(part.calls_a) : `${plain(part.calls_a)} → ${plain(part.calls_b)}`}</td>
            <td class="number">{part.name_a ? duration(part.a_ns) : DASH}</td>
            <td class="number">{part.name_b ? duration(part.b_ns) : DASH}</td>
            <td class={way(part.change_ns)}>{time(part.change_ns)}</td>
            <td><Whisker part={part} reach={reach} /></td>
            <td>{part.sure ? "sure" : <span class="muted">not sure</span>}</td>
          </tr>
        ))}</tbody>
      </table>
    </section>
  );
}

/** A change as a bar from the middle, with its interval; an end of it beyond the edge has no stroke. */
function Whisker({ part, reach }: { part: PartChange; reach: number }) {
  const at = (ns: number): number => 100 + 98 * Math.max(-1, Math.min(1, ns / reach));
  const inside = [part.low_ns, part.high_ns].filter((ns) => Math.abs(ns) <= reach);
  const [from, to] = [at(Math.min(0, part.change_ns)), at(Math.max(0, part.change_ns))];
  return (
    <svg class="whisker" width="200" height="14" role="img" aria-label={`${time(part.low_ns)} to ${time(part.high_ns)}`}>
      <line x1={100} x2={100} y1={0} y2={14} class="grid" />
      <rect x={from} y={3} width={Math.max(1, to - from)} height={8} class={`${part.change_ns > 0 ? "slower" : "faster"}${part.sure ? "" : " unsure"}`} />
      <path d={`M${at(part.low_ns)} 7H${at(part.high_ns)}${inside.map((ns) => `M${at(ns)} 4V10`).join("")}`} class="interval" />
    </svg>
  );
}

/** The times of each run's steps in their order of length; the longest tenth would leave no room for the others. */
function StepLines({ content }: { content: Compared }) {
  const percents = Array.from({ length: DRAWN + 1 }, (_, i) => i);
  const lines = content.comparison.levels.flatMap((runs, of) => runs.filter((run) => run.quantiles_ns.length).map((run, i) => ({
    name: `${"AB"[of]}${runs.length > 1 ? ` ${i + 1}` : ""}`, x: percents, y: run.quantiles_ns.slice(0, DRAWN + 1), colour: side(of as 0 | 1), dashed: of === 0,
  })));
  return lines.length ? <Lines label="Times of the steps of both, without waits for a core" lines={lines} format={duration} x={(value) => `${Math.round(value)} % of the steps`} /> : null;
}

function Phases({ content }: { content: Compared }) {
  const { phases } = content.comparison;
  const most = Math.max(1, ...phases.flatMap((phase) => [phase.a_ns ?? 0, phase.b_ns ?? 0]));
  return (
    <table class="simple top phases"><thead><tr><th scope="col">phase</th><th scope="col"><i style={{ background: side(0) }} />A <i style={{ background: side(1) }} />B</th><th scope="col" class="number">A</th><th scope="col" class="number">B</th><th scope="col" class="number">own change</th></tr></thead>
      <tbody>{phases.map((phase) => (
        <tr key={phase.name}><td>{shown(phase.name, 40)}</td>
          <td>{[phase.a_ns, phase.b_ns].map((ns, of) => <span key={of} class="pair" style={{ width: `${Math.max(1, (96 * (ns ?? 0)) / most)}px`, background: side(of as 0 | 1) }} />)}</td>
          <td class="number">{duration(phase.a_ns)}</td><td class="number">{duration(phase.b_ns)}</td><td class={way(phase.change_ns)}>{time(phase.change_ns)}</td></tr>
      ))}</tbody></table>
  );
}

function Exact({ content }: { content: Compared }) {
  const { memory, counts, shapes, compilations } = content.comparison;
  const [before, after] = compilations;
  const rows: [string, string, string, string][] = [
    ...memory.filter((row) => row.a !== row.b).map((row): [string, string, string, string] => [`memory ${WHAT[row.what] ?? row.what}, ${row.device}`, bytes(row.a), bytes(row.b), row.varies ? "varies between runs" : row.a && row.b !== null ? share(row.b / row.a - 1) : ""]),
    ...(before !== after ? [["compilations", before === null ? DASH : plain(before), after === null ? DASH : plain(after), ""] as [string, string, string, string]] : []),
    ...counts.slice(0, MOST).map((row): [string, string, string, string] => [`calls of ${row.name}${row.phase && `, ${row.phase}`}`, plain(row.a), plain(row.b), row.varies ? "varies" : ""]),
  ];
  if (!rows.length && !shapes.length) return <p>Memory, calls, shapes and compilations are the same.</p>;
  return (
    <>
      <table class="simple exact"><thead><tr><th scope="col">what</th><th scope="col" class="number">A</th><th scope="col" class="number">B</th><th scope="col">change</th></tr></thead>
        <tbody>{rows.map(([what, a, b, note], i) => <tr key={i}><td class="name" title={shown(what, 2000)}>{shown(what, 120)}</td><td class="number">{a}</td><td class="number">{b}</td><td>{note}</td></tr>)}</tbody></table>
      <p class="muted">{[counts.length > MOST ? `${counts.length - MOST} more counts` : "", shapes.length ? `${shapes.length} ${shapes.length === 1 ? "operator" : "operators"} with other shapes` : ""].filter(Boolean).join(", ")}</p>
    </>
  );
}

function Notes({ content }: { content: Compared }) {
  const { level, mean, notes, gates, machine } = content.comparison;
  const [before, after] = machine.delay;
  const lines: [string, ComponentChildren][] = [
    ...gates.map((gate): [string, ComponentChildren] => ["limit", <span key="" class={gate.outcome === "failed" ? "more" : ""}>{shown(`${gate.rule} ${gate.outcome}: ${gate.why}`, 300)}</span>]),
    ...notes.map((note): [string, ComponentChildren] => ["note", shown(note, 500)]),
    ...(mean && mean.verdict !== content.comparison.verdict && mean.low !== null && mean.high !== null ? [["mean", `${mean.verdict}: ${share(mean.change)} (${share(mean.low)} … ${share(mean.high)})`] as [string, string]] : []),
    ...(content.promise ? [["predicted", shown(content.promise, 400)] as [string, string]] : []),
    ...(before !== null && after !== null && !notes.some((note) => note.includes("waited for a core")) ? [["machine", `its thread waited for a core ${percent(before)} and ${percent(after)} of the time`] as [string, string]] : []),
    ...(level?.spread ? [["machine", `it repeats itself to ${(100 * level.spread).toFixed(1)} %`] as [string, string]] : []),
  ];
  if (!lines.length) return <p class="muted">Nothing: program, machine and options are the same.</p>;
  return <table class="simple facts"><tbody>{lines.map(([what, text], i) => <tr key={i}><th scope="row">{what}</th><td>{text}</td></tr>)}</tbody></table>;
}

export function Steps({ content, page }: { content: Compared; page: Page }) {
  return (
    <>
      <h1>Steps of both, from the quickest to the longest</h1>
      <StepLines content={content} />
      <p class="muted">Own times: without what their thread waited for a core. The level of a run, by which the sides are compared, is what a tenth of its steps do not exceed. The longest tenth is in the table.</p>
      {page.results.map((name) => <OneResult key={name} content={content} name={name} />)}
    </>
  );
}
