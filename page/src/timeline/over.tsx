// What lies over the lanes: arrows of the selected span, the clocks of the ranks, marks; and the legend of the overlays.

import { useEffect, useState } from "preact/hooks";
import { overlayColour } from "../colours";
import { duration, percent, shown } from "../format";
import type { RankOf } from "../model";
import { theme } from "../state";
import type { Api, Chained, Selected, Statistic } from "./api";
import { ROW, type ShownRow } from "./rows";
import { within } from "./ruler";

/** What is seen: the window, and the rows from `top` on, in pixels. */
export interface Seen {
  a: number;
  b: number;
  width: number;
  top: number;
  height: number;
}

const px = ({ a, b, width }: Seen, time: number): number => ((time - a) / (b - a)) * width;

/** Where the lane of a span is shown: its own row, else that of its folded track. */
const rowOf = (rows: ShownRow[], span: Selected): ShownRow | undefined =>
  rows.find((row) => row.what === "lane" && row.lane === span.lane) ?? rows.find((row) => row.what === "lane" && row.first && row.track?.lanes.includes(span.lane));

export function Arrows({ rows, arrows, seen: of }: { rows: ShownRow[]; arrows: Chained[]; seen: Seen }) {
  const lines = arrows.flatMap(({ kind, from, to: end }, i) => {
    const [begins, ends] = [rowOf(rows, from), rowOf(rows, end)];
    const one = begins ?? ends;
    if (!one) return [];
    // The end on a track that is not shown lies right below: the list of arrows leads there.
    const below = one.y + ROW;
    // An arrow leaves a call that launches where it begins: the work may begin before the call returns.
    const leaves = kind === "launch" ? from.start : Math.min(from.start + from.dur, end.start);
    const [x, y] = [px(of, leaves), (begins?.y ?? below) - of.top + ROW / 2];
    const [to, down] = [px(of, end.start), (ends?.y ?? below) - of.top + ROW / 2];
    if (Math.max(x, to) < -2000 || Math.min(x, to) > of.width + 2000) return [];
    const bend = Math.max(12, Math.min(80, Math.abs(to - x) / 2));
    return [<path key={i} class={kind} d={`M${x.toFixed(1)} ${y}C${(x + bend).toFixed(1)} ${y} ${(to - bend).toFixed(1)} ${down} ${to.toFixed(1)} ${down}`} marker-end="url(#arrow)" />];
  });
  return (
    <svg class="arrows" width={of.width} height={of.height} aria-hidden="true">
      <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8Z" /></marker></defs>
      {lines}
    </svg>
  );
}

/** What is known of a rank's clock, in words. */
export const clockText = (of: RankOf): string => (of.uncertainty === null ? (of.reason ? `not aligned: ${of.reason}` : "") : `± ${duration(of.uncertainty)}`);

/** The row of a rank: its steps, each with the time that the beginning may be off; and that time as a bar. */
export function RankRow({ row, of, steps, seen: view }: { row: ShownRow; of: RankOf; steps: { number: number; start: number; dur: number }[]; seen: Seen }) {
  const unsure = of.uncertainty === null ? 0 : (2 * of.uncertainty * view.width) / (view.b - view.a);
  return (
    <div class={`rankrow ${of.uncertainty === null && of.reason ? "loose" : ""}`} style={{ top: `${row.y - view.top}px` }}>
      {within(steps, view.a, view.b, view.width).map(({ step, left, size }) => <i key={step.number} class="step" style={{ left: `${left}px`, width: `${size}px` }}>{size > 40 ? `step ${step.number}` : ""}</i>)}
      {unsure >= 1 && steps.filter((step) => step.start > view.a && step.start < view.b).slice(0, 50).map((step) => <i key={step.number} class="band" style={{ left: `${px(view, step.start) - unsure / 2}px`, width: `${unsure}px` }} />)}
      {of.uncertainty === null && of.reason && <span class="clock">{shown(clockText(of), 200)}</span>}
      {of.uncertainty !== null && <span class="clock" title={`the times of this rank may be off by ${duration(of.uncertainty)}`}><i style={{ width: `${Math.max(2, Math.min(unsure, view.width / 3))}px` }} />{clockText(of)}{unsure > view.width / 3 ? " (wider than shown)" : ""}</span>}
    </div>
  );
}

/** A moment that is marked, or a range of `length` ns. */
export interface Mark {
  time: number;
  name: string;
  length: number;
}

/** Marks in the link: time and name of each, of a range its length, as JSON. */
export function marksOf(text: string | undefined): Mark[] {
  try {
    const found = JSON.parse(text || "[]") as [number, string, number?][];
    return found.map(([time, name, length]) => ({ time: Number(time), name: String(name), length: Math.max(0, Number(length ?? 0)) })).filter((mark) => Number.isFinite(mark.time + mark.length));
  } catch {
    return [];
  }
}

export const marksText = (marks: Mark[]): string => (marks.length ? JSON.stringify(marks.map((mark) => [Math.round(mark.time), mark.name, ...(mark.length ? [Math.round(mark.length)] : [])])) : "");

export function MarkLines({ marks, seen: of }: { marks: Mark[]; seen: Seen }) {
  const seen = marks.filter((mark) => mark.time + mark.length >= of.a && mark.time <= of.b);
  const place = ({ time, length }: Mark): Record<string, string> => {
    const [left, right] = [px(of, Math.max(time, of.a)), px(of, Math.min(time + length, of.b))];
    return { left: `${left}px`, width: `${right - left}px` };
  };
  return <>{seen.map((mark, i) => <div key={i} class={mark.length ? "mark kept" : "mark"} style={place(mark)}><span>{shown(mark.name, 40)}</span></div>)}</>;
}

/** The marks by name: each leads to its place, can be renamed, and removed. */
export function Marks({ marks, set, go }: { marks: Mark[]; set: (marks: Mark[]) => void; go: (mark: Mark) => void }) {
  if (!marks.length) return null;
  return (
    <div class="tools marks">
      <span class="muted">marks</span>
      {marks.map((mark, i) => (
        <span key={i} class="chip">
          <button class="quiet" onClick={() => go(mark)} aria-label={`go to ${mark.name}`}>{duration(mark.time)}{mark.length > 0 && ` + ${duration(mark.length)}`}</button>
          <input value={mark.name} aria-label={`name of the mark at ${duration(mark.time)}`} onChange={(event) => set(marks.map((one, k) => (k === i ? { ...one, name: event.currentTarget.value } : one)))} />
          <button class="quiet" onClick={() => set(marks.filter((_, k) => k !== i))} aria-label={`remove ${mark.name}`}>×</button>
        </span>
      ))}
    </div>
  );
}

const WHAT: Record<string, string> = { idle: "Why devices do nothing", path: "Critical path" };
const MEANS: Record<string, string> = {
  idle: "what the host does, or fails to do, while a device waits for work; a rank without a device: while no operator runs",
  path: "what decides when the step ends, underlined: only shortening this shortens the step",
};

/** An overlay in words: the parts in the window with their time, largest first. */
export function Legend({ api, what, lanes, a, b }: { api: Api; what: "idle" | "path"; lanes: number[]; a: number; b: number }) {
  const [rows, setRows] = useState<Statistic[] | null>(null);
  const key = `${a},${b},${lanes.join()}`;
  useEffect(() => {
    let current = true;
    const timer = setTimeout(() => void api.range(lanes, a, b).then((found) => current && setRows(found)), 120);
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [api, key]);
  const parts = new Map<string, number>();
  for (const row of rows ?? []) {
    const part = api.name(row.name).split(":")[0]!;
    parts.set(part, (parts.get(part) ?? 0) + row.total);
  }
  const sum = [...parts.values()].reduce((all, one) => all + one, 0);
  return (
    <div class="legend" data-overlay={what} role="note">
      <b>{what === "path" && <i class={what} />}{WHAT[what]}</b> <span class="muted">{MEANS[what]}</span>
      {rows === null ? <span class="muted"> reading …</span> : (
        <p>
          {[...parts].sort((one, other) => other[1] - one[1]).map(([part, total]) => (
            <span key={part}>{what === "idle" && <i class={what} style={{ color: overlayColour(part, theme.value) }} />}{shown(part, 40)} {duration(total)} <span class="muted">{percent(total / Math.max(1, sum))}</span></span>
          ))}
          {!parts.size && <span class="muted">{lanes.length ? "nothing of it lies in this window" : "nothing of it is known of the ranks in view"}</span>}
        </p>
      )}
    </div>
  );
}
