// The rows in view: names on the left, the picture on the right, and what lies over it.

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { duration, percent, shown } from "../format";
import type { Timeline as Times } from "../model";
import { copy } from "../state";
import type { Api, Selected } from "./api";
import { Arrows, clockText, MarkLines, type Mark, RankRow, type Seen } from "./over";
import type { Hits, Picture } from "./picture";
import { ROW, type Rows, type ShownRow, type Track } from "./rows";
import type { Selection } from "./selection";
import { type Range, useDrag, useWheel, type Window } from "./window";

interface Given {
  api: Api;
  time: Window;
  rows: Rows;
  picture: Picture;
  selection: Selection;
  range: Range | null;
  setRange: (range: Range | null) => void;
  marks: Mark[];
  arrows: boolean;
}

export function Lanes({ api, time, rows, picture, selection, range, setRange, marks, arrows }: Given) {
  const { a, b, move } = time;
  const { width, hits } = picture;
  const { selected } = selection;
  const [asked, setAsked] = useState<Asked | null>(null);
  /** The menu of a lane: where it was asked for, else, by a key, at the lane of the selected span. */
  const ask = (event: MouseEvent): void => {
    const { left, top } = (event.currentTarget as HTMLElement).getBoundingClientRect();
    const [x, y] = [event.clientX - left, event.clientY - top];
    const row = event.button === 2 ? rows.list.find((one) => one.what !== "path" && one.y <= y + rows.top && y + rows.top < one.y + ROW) : rows.list.find((one) => one.lane === selected?.lane);
    if (!row?.track) return;
    event.preventDefault();
    setAsked({ track: row.track, x, y: event.button === 2 ? y : row.y - rows.top + ROW });
  };
  const box = useRef<HTMLDivElement>(null);
  const rowAt = (y: number): ShownRow | undefined => rows.list.find((one) => one.lane >= 0 && one.what !== "path" && one.y <= y + rows.top && y + rows.top < one.y + ROW);
  const at = (x: number, y: number, act: (span: Selected | null) => void): void => {
    const row = rowAt(y);
    picture.look((known) => act(row ? spanAt(known, row, a + ((b - a) * x) / width, ((b - a) / width) * 3) : null));
  };
  useWheel(box, time, width, (by) => rows.scrollTo(rows.top + by));
  const snap = (near: number, y: number): number => {
    const row = rowAt(y);
    const edge = row && hits.current ? edgeNear(hits.current, row, near) : null;
    return edge !== null && Math.abs(edge - near) * width <= SNAP * (b - a) ? edge : near;
  };
  const drag = useDrag(time, { snap, width, setRange, at, select: selection.select, measure: selection.measure });
  const seen: Seen = { a, b, width, top: rows.top, height: rows.height };
  return (
    <div class="rows" style={{ height: `${rows.height}px` }} onContextMenu={ask}>
      {asked && <LaneMenu {...asked} rows={rows} close={() => setAsked(null)} />}
      <div class="names">{rows.visible.filter((row) => row.what !== "path").map((row) => (
        <div key={`${row.what}${row.rank}:${row.lane}`} class={`lane ${row.what}`} style={{ top: `${row.y - rows.top}px` }}><Name row={row} of={api.of} rows={rows} /></div>
      ))}</div>
      <div class="area" ref={box} tabIndex={0} role="application" aria-label="Timeline; press ? for its keys" {...drag}
        onDblClick={() => selected && move(selected.start - selected.dur * 0.1, selected.start + selected.dur * 1.1, true)}>
        <div ref={picture.holder} class="holder" />
        {rows.visible.filter((row) => row.what === "rank" || row.what === "waiting").map((row) => <OfRank key={`${row.what}${row.rank}`} api={api} row={row} seen={seen} />)}
        {arrows && selection.arrows.length > 0 && <Arrows rows={rows.list} arrows={selection.arrows} seen={seen} />}
        {gaps(api.of).map(([from, to]) => <p key={from} class="gap" style={{ left: `${((from - a) / (b - a)) * width}px`, width: `${((to - from) / (b - a)) * width}px` }}><span>not in this file</span></p>)}
        <MarkLines marks={marks} seen={seen} />
        {range && <div class="range" style={{ left: `${((range[0] - a) / (b - a)) * width}px`, width: `${((range[1] - range[0]) / (b - a)) * width}px` }}><span>{duration(range[1] - range[0])}</span></div>}
      </div>
      <div class="bar-of" aria-hidden="true">{rows.total > rows.height && <i style={{ top: `${(100 * rows.top) / rows.total}%`, height: `${(100 * rows.height) / rows.total}%` }} />}</div>
    </div>
  );
}

interface Asked {
  track: Track;
  /** Where, in pixels. */
  x: number;
  y: number;
}

/** What can be done with a lane. The arrow keys go through it, Escape and a click elsewhere close it. */
function LaneMenu({ track, x, y, rows, close }: Asked & { rows: Rows; close: () => void }) {
  const box = useRef<HTMLDivElement>(null);
  const items: [text: string, key: string, act: () => void][] = [
    [rows.isPinned(track) ? "release from the top" : "pin to the top", "P", () => rows.pin(track)],
    ["hide", "H", () => rows.hide(track)],
    ...(track.lanes.length > 1 ? [[rows.isOpen({ rank: track.rank, track }) ? "fold" : "unfold", "T", () => rows.fold({ rank: track.rank, track })] as [string, string, () => void]] : []),
    ["show only lanes of this name", "L", () => rows.setFilter(track.name)],
    ["copy its name", "", () => void copy(track.name, "name copied")],
  ];
  useLayoutEffect(() => {
    box.current?.querySelector("button")?.focus();
    const elsewhere = (event: Event): void => void (box.current?.contains(event.target as Node) || close());
    addEventListener("pointerdown", elsewhere, true);
    return () => removeEventListener("pointerdown", elsewhere, true);
  }, [track.key, x, y]);
  const key = (event: KeyboardEvent): void => {
    const buttons = [...(box.current?.querySelectorAll("button") ?? [])];
    const way = { ArrowDown: 1, ArrowUp: buttons.length - 1 }[event.key];
    event.stopPropagation();
    if (event.key === "Escape" || event.key === "Tab") close();
    else if (way) buttons[(buttons.indexOf(document.activeElement as HTMLButtonElement) + way) % buttons.length]?.focus();
    else return;
    event.preventDefault();
  };
  return (
    <div ref={box} class="menu" role="menu" aria-label={shown(`${track.group} · ${track.name}`, 80)} style={{ left: `min(${x}px, 100% - 210px)`, top: `${y}px` }} onKeyDown={key}>
      {items.map(([text, hint, act]) => <button key={text} role="menuitem" onClick={() => { act(); close(); }}>{text}<span class="muted">{hint}</span></button>)}
    </div>
  );
}

/** What lies between the parts of the run that a file holds. */
const gaps = ({ windows = [] }: Times): Range[] => windows.slice(1).map(([begin], i) => [windows[i]![1], begin]);

/** Over the picture, the row of a rank; or why its lanes are not there. */
function OfRank({ api, row, seen }: { api: Api; row: ShownRow; seen: Seen }) {
  const about = api.of.ranks.find((one) => one.rank === row.rank)!;
  const why = about.absent ?? api.ranks.failed.get(row.rank);
  const said = row.what === "waiting" ? "reading …" : why ? `not shown: ${shown(why, 200)}` : "";
  if (said) return <p class="saying muted" style={{ top: `${row.y - seen.top}px` }}>{said}</p>;
  return <RankRow row={row} of={about} steps={api.ranks.known.get(row.rank)?.steps ?? []} seen={seen} />;
}

/** The name of a row, with what folds it. */
function Name({ row, of, rows }: { row: ShownRow; of: Times; rows: Rows }) {
  const { track } = row;
  const job = of.ranks.length > 1;
  const open = rows.isOpen(row);
  if (row.what === "idle") return <span class="over">why it is idle</span>;
  if (row.what === "rank") {
    const about = of.ranks.find((one) => one.rank === row.rank)!;
    const text = `rank ${row.rank}${about.host ? ` · ${about.host}` : ""}`;
    return (
      <button class="fold" aria-expanded={open} title={shown(`${text} · ${clockText(about)}`, 400)} onClick={() => rows.fold(row)}>
        <span class="caret">{open ? "▾" : "▸"}</span><span class="text">{shown(text, 40)}</span><span class={about.reason ? "loose" : "muted"}>{about.reason ? "not aligned" : clockText(about)}</span>
      </button>
    );
  }
  if (!row.first || !track) return null;
  const { busyOf } = of.ranks.find((one) => one.rank === row.rank)?.read ?? {};
  const rank = job && rows.isPinned(track) ? `rank ${track.rank} · ` : "";
  return (
    <button class="fold" aria-expanded={open} title={shown(`${rank}${track.group} · ${track.name} (Alt+click hides it)`, 400)} onClick={(event) => (event.altKey ? rows.hide(track) : rows.fold(row))}>
      <span class="caret">{track.lanes.length > 1 ? (open ? "▾" : "▸") : " "}</span>
      <span class="text">{shown(`${rank}${track.main && job ? "main thread" : track.name}`, 60)}</span><span class="muted">{percent(track.busy / Math.max(1, busyOf ?? of.total))}</span>
    </button>
  );
}

/** Pixels from which on the end of a range goes to the edge of a span. */
const SNAP = 6;

/** Which spans of the picture are those of a row: the first, and the one after the last. */
function spansOf(known: Hits, row: ShownRow): [number, number] {
  const index = known.lanes.indexOf(row.lane);
  if (index < 0) return [0, 0];
  let first = 0;
  for (let i = 0; i < index; i++) first += known.number[i]!;
  return [first, first + known.number[index]!];
}

/** The edge of a span of a row that is nearest to a time. */
function edgeNear(known: Hits, row: ShownRow, time: number): number | null {
  const [first, last] = spansOf(known, row);
  let best: number | null = null;
  for (let i = first; i < last; i++)
    for (const edge of [known.start[i]!, known.start[i]! + known.width[i]!]) if (best === null || Math.abs(edge - time) < Math.abs(best - time)) best = edge;
  return best;
}

/** The span of a row at a time, or near it. */
function spanAt(known: Hits, row: ShownRow, time: number, near: number): Selected | null {
  const [first, last] = spansOf(known, row);
  let best: Selected | null = null;
  for (let i = first; i < last; i++) {
    const start = known.start[i]!;
    const dur = known.width[i]!;
    const inside = start <= time && time < start + dur;
    if (!inside && (best || start > time + near || time - near >= start + dur)) continue;
    best = { rank: row.rank, place: known.place[i]!, lane: row.lane, start, dur, name: known.name[i]!, kind: known.kind[i]! };
    if (inside) break;
  }
  return best;
}
