// The verdict first, then the numbers behind it; each leads to the page that proves it.

import type { ComponentChildren } from "preact";
import { partColour } from "../colours";
import { Stacks } from "../charts";
import { bytes, count, duration, percent, shown } from "../format";
import type { Content, Entry } from "../model";
import { open, theme } from "../state";
import { OneFinding } from "./findings";
import { openStep, RunLine } from "./steps";

export function Overview({ content }: { content: Content }) {
  const { steps } = content;
  const peak = [...content.memoryPeak].sort((a, b) => Number(b.allocated ?? b.reserved ?? 0) - Number(a.allocated ?? a.reserved ?? 0))[0];
  const has = (name: string): boolean => content.pages.some((one) => one.name === name && !one.absent);
  return (
    <>
      <div class="verdict"><h1>{shown(content.verdict, 400)}</h1>{has("timeline") && <button class="go" onClick={() => open("timeline")}>Open the timeline</button>}</div>
      <div class="tiles">
        <Tile name={steps.count ? "median step" : "recording"} value={duration(steps.count ? steps.p50_ns : content.split.reduce((sum, part) => sum + part.total_ns, 0))} note={steps.count > 1 ? `${duration(steps.shortest_ns)} – ${duration(steps.longest_ns)}` : ""} to={has("steps") ? "steps" : ""} />
        <Tile name="steps recorded" value={count(steps.count)} note={content.run.number.length > steps.count ? `of ${count(content.run.number.length)}` : steps.inferred ? "inferred" : ""} to={has("steps") ? "steps" : ""} />
        {content.split.filter((part) => part.share > 0.0005).slice(0, 4).map((part) => <Tile key={part.name} name={part.name} value={percent(part.share)} note={`${duration(part.mean_ns)} a step`} to={has("steps") ? "steps" : ""} />)}
        {peak && <Tile name={`memory peak ${peak.device}`} value={bytes(peak.allocated ?? peak.reserved)} note={peak.reserved === null ? "" : `${bytes(peak.reserved)} reserved`} to={has("memory") ? "memory" : ""} />}
      </div>
      <div class="halves">
        <section aria-label="Where the steps go">
          <h2>Where the steps go</h2>
          {content.perStep.length ? <Stacks label="Parts of each step" numbers={content.stepNumbers} parts={content.perStep} onStep={has("timeline") ? (i) => openStep(content, i) : undefined!} /> : <p class="muted">The source does not say what the parts of a step are.</p>}
          {content.phases.length > 0 && <Shares parts={content.phases} label="phases of the mean step" />}
          {content.run.number.length > steps.count && <><h2>All {count(content.run.number.length)} steps of the run</h2><RunLine content={content} /></>}
        </section>
        {content.findings.length > 0 && (
          <section aria-label="Findings">
            <h2>What would make it shorter</h2>
            {content.findings.map((finding, i) => <OneFinding key={i} number={i + 1} finding={finding} content={content} />)}
          </section>
        )}
        {content.kernels.length > 0 && <Top title="Kernels, by device time" entries={content.kernels} to={has("kernels") ? "kernels" : ""} />}
        {content.operators.length > 0 && <Top title="Operators, by self time on the host" entries={content.operators} to={has("operators") ? "operators" : ""} />}
      </div>
    </>
  );
}

function Tile({ name, value, note, to }: { name: string; value: string; note: string; to: string }) {
  const inside: ComponentChildren = <><b>{value}</b><span>{shown(name, 40)}</span><small>{note}</small></>;
  return to ? <button class="tile" onClick={() => open(to)}>{inside}</button> : <div class="tile">{inside}</div>;
}

function Shares({ parts, label }: { parts: { name: string; mean_ns: number; share: number }[]; label: string }) {
  const there = parts.filter((part) => part.share > 0);
  return (
    <div class="shares" role="img" aria-label={`${label}: ${there.map((part) => `${part.name} ${percent(part.share)}`).join(", ")}`}>
      <div class="strip">{there.map((part) => <i key={part.name} style={{ flexGrow: String(part.share), background: partColour(part.name, theme.value) }} />)}</div>
      <p>{there.map((part) => <span key={part.name}><i style={{ background: partColour(part.name, theme.value) }} />{part.name} {duration(part.mean_ns)} · {percent(part.share)}</span>)}</p>
    </div>
  );
}

function Top({ title, entries, to }: { title: string; entries: Entry[]; to: string }) {
  const most = Math.max(...entries.map((entry) => entry.total_ns), 1);
  return (
    <section aria-label={title}>
      <h2>{title} {to && <button class="quiet" onClick={() => open(to)}>all</button>}</h2>
      <table class="simple top"><tbody>{entries.slice(0, 8).map((entry, i) => (
        <tr key={i}><td class="name" title={shown(entry.name, 2000)}>{shown(entry.name, 90)}</td>
          <td><span class="bar" style={{ width: `${Math.max(1, (90 * entry.total_ns) / most)}px` }} /></td>
          <td class="number">{duration(entry.total_ns)}</td><td class="number">{percent(entry.share)}</td><td class="number">{count(entry.count)} ×</td></tr>
      ))}</tbody></table>
    </section>
  );
}
