// All ranks: what each step of each rank takes, what flows between them, and the tables of the job.

import { useState } from "preact/hooks";
import { bytes, count, duration, shown } from "../format";
import { HeatMap } from "../heat";
import type { Content, Page, Result } from "../model";
import { open } from "../state";
import { AllResults, useResult } from "./results";

const MATRIX = "cluster_communication_matrix";

type Values = (string | number | boolean | null)[];
const values = (of: Result, name: string): Values => of.columns.find((column) => column.name === name)?.values ?? [];
const distinct = (all: Values): (string | number)[] => [...new Set(all.filter((value) => typeof value === "number" || typeof value === "string"))].sort((a, b) => Number(a) - Number(b));

export function AllRanks({ content, page }: { content: Content; page: Page }) {
  return (
    <>
      <h1>{page.title}</h1>
      {page.results.includes("cluster_step_trace_time") && <Steps content={content} />}
      {page.results.includes(MATRIX) && <Matrix content={content} name={MATRIX} />}
      <AllResults content={content} page={page} />
    </>
  );
}

/** What a rank says to others; of a job, what flows between all. */
export function Communication({ content, page }: { content: Content; page: Page }) {
  const ofJob = content.pages.some((one) => one.results.includes(MATRIX));
  return (
    <>
      <h1>{page.title}</h1>
      {ofJob && <Matrix content={content} name={MATRIX} />}
      <AllResults content={content} page={page} />
    </>
  );
}

/** Ranks by steps: a part of the step, the whole at first. */
function Steps({ content }: { content: Content }) {
  const found = useResult(content, "cluster_step_trace_time");
  const [part, setPart] = useState("Total");
  if (found === null) return <p class="muted pending">reading the steps of all ranks …</p>;
  if (typeof found === "string" || !found.rows) return null;
  const of = values(found, "Type").flatMap((type, row) => (type === "rank" ? [row] : []));
  const [step, rank, time] = ["Step", "Index", part].map((name) => { const all = values(found, name); return of.map((row) => all[row] ?? null); }) as [Values, Values, Values];
  const [rows, columns] = [distinct(rank), distinct(step)];
  if (rows.length < 2 || !columns.length) return null;
  const parts = found.columns.filter((column) => column.unit === "us" && column.name !== "Start Time(us)").map((column) => column.name);
  const [down, across] = [rows, columns].map((all) => new Map(all.map((one, i) => [one, i]))) as [Map<unknown, number>, Map<unknown, number>];
  const cells = new Array<number | null>(rows.length * columns.length).fill(null);
  of.forEach((_, i) => {
    const value = time[i];
    if (typeof value === "number") cells[down.get(rank[i])! * columns.length + across.get(step[i])!] = value * 1e3;
  });
  return (
    <section aria-label="Ranks by steps">
      <h2>Every step of every rank</h2>
      <div class="tools">
        <label>time of <select value={part} onChange={(event) => setPart(event.currentTarget.value)}>{parts.map((name) => <option key={name} value={name}>{name === "Total" ? "the whole step" : name}</option>)}</select></label>
        {found.of > found.rows && <span class="muted">of the first {count(found.rows)} of {count(found.of)} rows; `stepscope view` shows all</span>}
      </div>
      <HeatMap label={`${part} of each step of each rank`} rows={rows.map(String)} columns={columns.map(String)} values={cells} format={duration} of={["rank", "step"]} onCell={(row, column) => toStep(content, Number(rows[row]), Number(columns[column]))} />
    </section>
  );
}

/** Show a step of a rank in the timeline, if it is known where it lies. */
function toStep(content: Content, rank: number, number: number): void {
  const step = content.timeline?.ranks.find((row) => row.rank === rank)?.read?.steps.find((one) => one.number === number) ?? content.timeline?.steps.find((one) => one.number === number);
  if (step) open("timeline", { t: `${step.start},${step.start + step.dur}`, sel: null });
}

/** What flows from rank to rank: its bytes where they are known, else the time. */
function Matrix({ content, name }: { content: Content; name: string }) {
  const found = useResult(content, name);
  const [operation, setOperation] = useState("");
  const [by, setBy] = useState("");
  if (found === null) return <p class="muted pending">reading what flows between the ranks …</p>;
  if (typeof found === "string" || !found.rows) return null;
  const measures = ([["bytes", "bytes", bytes], ["transit_ns", "time", duration]] as const).filter(([column]) => values(found, column).some((value) => typeof value === "number"));
  const [column, , format] = measures.find(([one]) => one === by) ?? measures[0] ?? [];
  const [from, to, what] = ["src_rank", "dst_rank", "operation"].map((one) => values(found, one)) as [Values, Values, Values];
  const rows = distinct([...from, ...to]);
  if (!column || !format || rows.length < 2) return null;
  const place = new Map(rows.map((one, i) => [one, i]));
  const cells = new Array<number | null>(rows.length ** 2).fill(null);
  values(found, column).forEach((value, i) => {
    const [row, across] = [place.get(from[i] as number), place.get(to[i] as number)];
    if (typeof value !== "number" || row === undefined || across === undefined || (operation && what[i] !== operation)) return;
    const cell = row * rows.length + across;
    cells[cell] = (cells[cell] ?? 0) + value;
  });
  if (!operation && !cells.some((cell) => cell !== null)) return null; // no link says between whom
  const operations = [...new Set(what)].map(String);
  return (
    <section aria-label="Between ranks">
      <h2>What flows between ranks</h2>
      <div class="tools">
        {measures.length > 1 && <label>show <select value={column} onChange={(event) => setBy(event.currentTarget.value)}>{measures.map(([one, text]) => <option key={one} value={one}>{text}</option>)}</select></label>}
        {operations.length > 1 && <label>of <select value={operation} onChange={(event) => setOperation(event.currentTarget.value)}><option value="">all operations</option>{operations.map((one) => <option key={one} value={one}>{shown(one, 60)}</option>)}</select></label>}
        {found.of > found.rows && <span class="muted">of the first {count(found.rows)} of {count(found.of)} links; `stepscope view` shows all</span>}
      </div>
      <HeatMap label="What flows between ranks" rows={rows.map(String)} columns={rows.map(String)} values={cells} format={format as (value: number | null) => string} of={["from rank", "to rank"]} unknown="no link was recorded" square />
    </section>
  );
}
