// The timeline: lanes on the left, time to the right. The page moves the window, the worker draws it.

import { useEffect, useMemo, useState } from "preact/hooks";
import { duration, shown } from "../format";
import type { Content, Timeline as Times } from "../model";
import type { Source } from "../source";
import { go, link, said, source, theme } from "../state";
import { Api } from "./api";
import { Details } from "./details";
import { useKeys } from "./keys";
import { Lanes } from "./lanes";
import type { View } from "./messages";
import { Legend, type Mark, Marks, marksOf, marksText } from "./over";
import { usePicture } from "./picture";
import { useReading } from "./reading";
import type { Found } from "./query";
import { ROW, type Rows, useRows } from "./rows";
import { Minimap } from "./minimap";
import { Ruler } from "./ruler";
import { type Selection, useSelection } from "./selection";
import { type Overlay, Tools } from "./tools";
import { type Range, type Side, useWindow, type Window } from "./window";

/** The width of the names of lanes, as in page.css. */
const LABELS = matchMedia("(max-width: 700px)").matches ? 104 : 240;

/** The timeline of a run; or of one of two that are side by side, whose details are shown if the keys act there. */
export function Timeline({ content, from = source.value!, side = null }: { content: Content; from?: Source; side?: Side | null }) {
  if (!content.timeline) return <p>This run has no spans.</p>;
  return <Loaded key={`${content.rank} ${content.timeline.end}`} content={content} of={content.timeline} from={from} side={side} />;
}

/** Pixels above and below the lanes; of two runs, each has half of what is left. */
const [AROUND, AROUND_BOTH, LEAST] = [362, 536, 160];

function Loaded({ content, of, from, side }: { content: Content; of: Times; from: Source; side: Side | null }) {
  const api = useMemo(() => new Api(from, content, of), [from, of]);
  const active = side?.active ?? true;
  const suffix = String(side?.place ?? "");
  const [read, setRead] = useState(0);
  const [range, setRange] = useRange(side);
  const [query, setQuery] = useState(link.value["q"] ?? "");
  const [problem, setProblem] = useState("");
  const over = new Set((link.value["over"] ?? "arrows").split(","));
  const time = useWindow(of, side);
  const picture = usePicture(api, setProblem);
  const rows = useRows(api, { first: content.rank, read, over, most: Math.max(LEAST, side ? (innerHeight - AROUND_BOTH) / 2 : innerHeight - AROUND), suffix });
  const told = (rank: number): void => {
    if (api.ranks.known.has(rank)) picture.tell(rank);
    setRead((times) => times + 1);
  };
  const selection = useSelection(api, { time, rows, told, setProblem, part: `sel${suffix}` });
  useReading(api, { here: rows.here, over: over.has("idle") || over.has("path"), told, setProblem });
  const found = useFound(api, query, read);
  useEffect(() => {
    picture.draw(viewOf(api, { time, rows, width: picture.width, selection, found }));
    if (active) said.value = `${duration(time.b - time.a)} from ${duration(time.a - time.at)}`;
  }, [api, time.a, time.b, rows.top, rows.height, rows.list, picture.width, selection.selected, found, theme.value]);
  const toggle = (what: Overlay): void => {
    if (!over.delete(what)) over.add(what);
    go({ over: [...over].filter(Boolean).join() || "none" });
  };
  const { marks, mark, keep } = useMarks(api, time, range, selection);
  useKeys({ api, time, rows, selection, range, setRange, mark, toggle, active });
  const goTo = ({ time: start, length }: Mark): void => {
    if (!length) return move(start - (b - a) / 2, start + (b - a) / 2, true);
    setRange([start, start + length]);
    return move(start - length * 0.1, start + length * 1.1, true);
  };
  const { a, b, move, at } = time;
  const lanes = rows.visible.filter((row) => row.what === "lane");
  return (
    <div class="timeline">
      <h1 class="hidden">Timeline</h1>
      <Tools api={api} time={time} rows={rows} query={query} setQuery={setQuery} found={found} selected={selection.selected} select={selection.select} over={over} toggle={toggle} setProblem={setProblem} active={active} />
      {active && <Marks marks={marks} set={keep} go={goTo} />}
      {problem && <p class="error" role="alert">{shown(problem, 300)}</p>}
      <Minimap api={api} tracks={rows.tracks.get(content.rank) ?? []} time={time} found={found} setProblem={setProblem} />
      <Ruler a={a - at} b={b - at} width={picture.width} labels={LABELS} steps={of.ranks.length > 1 ? [] : of.steps.map((step) => ({ ...step, start: step.start - at }))} move={(begin, end, step) => move(begin + at, end + at, step)} />
      <Lanes api={api} time={time} rows={rows} picture={picture} selection={selection} range={range} setRange={setRange} marks={marks} arrows={over.has("arrows") || selection.chained} />
      {(["idle", "path"] as const).filter((what) => over.has(what)).map((what) => <Legend key={what} api={api} what={what} lanes={lanes.flatMap((row) => (row.first && row.track ? row.track[what] : []))} a={a} b={b} />)}
      {active && <Details api={api} of={of} facts={selection.facts} measured={selection.measured} chain={selection.chained ? selection.arrows : null} range={range} lanes={lanes.map((row) => row.lane)} a={a} b={b} select={selection.select} />}
    </div>
  );
}

/** What the worker is to draw. */
function viewOf(api: Api, { time, rows, width, selection: { selected }, found }: { time: Window; rows: Rows; width: number; selection: Selection; found: Found }): Omit<View, "number"> {
  const drawn = rows.visible.filter((row) => row.lane >= 0).map((row) => ({ rank: row.rank, lane: row.lane, own: api.ranks.lanes[row.lane]!.own, y: row.y - rows.top, path: row.what === "path" }));
  drawn.sort((one, other) => Number(one.path) - Number(other.path));
  const scale = Math.min(1.5, devicePixelRatio || 1);
  return { a: time.a, b: time.b, rows: drawn, width, height: rows.height, scale, rowHeight: ROW, theme: theme.value, selected: selected?.place ?? -1, selectedRank: selected?.rank ?? -1, found: found.codes.length ? found : null };
}

/** What a search finds; the spans of a module are known when they were asked for. */
function useFound(api: Api, query: string, read: number): Found & { problem: string } {
  const searched = useMemo(() => api.search(query), [api, query, read]);
  const [found, setFound] = useState(searched);
  useEffect(() => {
    let current = true;
    if (searched.module) void api.bits(searched).then((bits) => current && setFound({ ...searched, bits }));
    return () => void (current = false);
  }, [api, searched]);
  return found.bits && found.codes === searched.codes ? found : searched;
}

/** The selected range, of which the link knows; its times count from where the window's do. */
function useRange(side: Side | null): [Range | null, (range: Range | null) => void] {
  const name = `range${side?.place ?? ""}`;
  const [from, to] = (link.value[name] ?? "").split(",").map(Number);
  const at = side?.at ?? 0;
  const range: Range | null = from !== undefined && to !== undefined && to > from ? [from + at, to + at] : null;
  return [range, (next) => go({ [name]: next && `${Math.round(next[0] - at)},${Math.round(next[1] - at)}` })];
}

/** The marks of the link; `mark` adds one: the given range, else the selected span, the start of the range, or the middle of the window. */
function useMarks(api: Api, { a, b, at: base }: Window, range: Range | null, { selected }: Selection) {
  const marks = marksOf(link.value["marks"]).map((one) => ({ ...one, time: one.time + base }));
  const keep = (all: Mark[], step = false): void => go({ marks: marksText(all.map((one) => ({ ...one, time: one.time - base }))) }, step);
  const mark = (whole: Range | null = null): void => {
    const at = whole ? whole[0] : selected && selected.start >= a && selected.start <= b ? selected.start : range ? range[0] : (a + b) / 2;
    const name = selected && !whole && at === selected.start ? shown(api.name(selected.name), 40) : `${whole ? "range" : "mark"} ${marks.length + 1}`;
    keep([...marks, { time: at, name, length: whole ? whole[1] - at : 0 }], true);
    said.value = `marked ${duration(at)}${whole ? ` to ${duration(whole[1])}` : ""}`;
  };
  return { marks, mark, keep };
}
