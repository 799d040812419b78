// What stands below each other: of a job a row for each rank, the tracks of the ranks, folded or with all their lanes,
// and what is drawn over them.

import { useEffect, useMemo, useState } from "preact/hooks";
import type { RankOf } from "../model";
import { go, link } from "../state";
import type { Api, Selected } from "./api";
import type { Ranks } from "./ranks";

export const ROW = 20;
const GAP = 4;

/** A thread or stream: all its lanes, the one that is shown when it is folded, and its overlays. */
export interface Track {
  key: string;
  rank: number;
  name: string;
  group: string;
  kind: string;
  main: boolean;
  lanes: number[];
  outline: number;
  busy: number;
  idle: number[];
  path: number[];
  /** How long the critical path lies on it. */
  onPath: number;
}

export interface ShownRow {
  y: number;
  what: "rank" | "lane" | "idle" | "path" | "waiting";
  rank: number;
  lane: number;
  track: Track | null;
  first: boolean;
}

/** The tracks of a rank that was read, in order. */
export function tracksOf(ranks: Ranks, rank: number): Track[] {
  const known = ranks.known.get(rank);
  if (!known) return [];
  const found = new Map<number, Track>();
  for (const number of known.lanes) {
    const lane = ranks.lanes[number]!;
    let track = found.get(lane.track);
    if (!track) {
      track = { key: `${rank}:${lane.track}`, rank, name: lane.name, group: lane.group, kind: lane.kind, main: lane.main, lanes: [], outline: number, busy: 0, idle: [], path: [], onPath: 0 };
      found.set(lane.track, track);
    }
    if (lane.kind === "idle") track.idle.push(number);
    else if (lane.kind === "path") {
      track.path.push(number);
      track.onPath += lane.busy;
    } else {
      track.lanes.push(number);
      if (lane.depth === 0) track.busy += lane.busy;
    }
  }
  const all = [...found.values()];
  for (const track of all) track.outline = outline(ranks, track, known.steps.length);
  return all;
}

const onPath = (tracks: Track[]): number => tracks.reduce((sum, track) => sum + track.onPath, 0);

/** The outermost lane that says more than which step it is. */
function outline(ranks: Ranks, track: Track, steps: number): number {
  const count = (lane: number): number => ranks.lanes[lane]!.count;
  const most = track.lanes.reduce((best, lane) => (count(lane) > count(best) ? lane : best), track.lanes[0]!);
  const ofSteps = (lane: number): boolean => ranks.lanes[lane]!.stepped > 0.5 * ranks.lanes[lane]!.busy;
  return track.lanes.find((lane) => count(lane) >= Math.max(4, 3 * steps) && !ofSteps(lane)) ?? most;
}

/** The main thread, and the busiest stream: what a rank shows before it is unfolded. */
export function mainTracks(tracks: Track[]): Track[] {
  const main = tracks.find((track) => track.main) ?? tracks[0];
  const stream = tracks.filter((track) => track.kind === "stream").sort((one, other) => other.busy - one.busy)[0];
  return [main, stream].filter((track) => track !== undefined).filter((track, i, all) => all.indexOf(track) === i);
}

export interface Layout {
  /** Of a job: each rank has a row. */
  job: boolean;
  filter: string;
  unfolded: Set<string>;
  pinned: Set<string>;
  hidden: Set<string>;
  /** Ranks of which all tracks are shown. */
  whole: Set<number>;
  idle: boolean;
  path: boolean;
}

/** All rows, and their height; ranks that were not read yet have room for what they will show. */
export function layOut(of: RankOf[], tracks: Map<number, Track[]>, how: Layout): { list: ShownRow[]; height: number } {
  const list: ShownRow[] = [];
  const wanted = how.filter.toLowerCase();
  let y = 0;
  const add = (what: ShownRow["what"], rank: number, lane: number, track: Track | null, first: boolean): void => {
    list.push({ y, what, rank, lane, track, first });
    if (what !== "path") y += ROW;
  };
  const put = (track: Track): void => {
    const lanes = how.unfolded.has(track.key) ? track.lanes : [track.outline];
    if (how.idle) for (const lane of track.idle) add("idle", track.rank, lane, track, false);
    lanes.forEach((lane, i) => {
      if (how.path && !i) for (const over of track.path) add("path", track.rank, over, track, false);
      add("lane", track.rank, lane, track, !i);
    });
    y += GAP;
  };
  const matches = (track: Track): boolean => !how.hidden.has(track.key) && (!wanted || `rank ${track.rank} ${track.group} ${track.name}`.toLowerCase().includes(wanted));
  const all = [...tracks.values()].flat();
  for (const track of all) if (how.pinned.has(track.key) && matches(track)) put(track);
  const usual = Math.max(1, mainTracks(tracks.values().next().value ?? []).length);
  for (const { rank, host, absent } of of) {
    const mine = tracks.get(rank);
    const named = how.job && wanted !== "" && `rank ${rank} ${host ?? ""}`.toLowerCase().includes(wanted);
    if (!mine) {
      if (wanted && !named) continue;
      add("rank", rank, -1, null, true);
      if (!absent) {
        add("waiting", rank, -1, null, false);
        y += (usual - 1) * (ROW + GAP) + GAP;
      }
      continue;
    }
    const main = mainTracks(mine);
    const listed = how.job && !how.whole.has(rank) && (!wanted || named) ? mine.filter((track) => main.includes(track) || (how.path && track.onPath > 0.02 * onPath(mine))) : mine;
    const shown = listed.filter((track) => track.lanes.length && !how.pinned.has(track.key) && !how.hidden.has(track.key) && (named || matches(track)));
    if (!shown.length && wanted) continue;
    if (how.job) add("rank", rank, -1, null, true);
    for (const track of shown) put(track);
  }
  return { list, height: y };
}

/** What can be folded: a track, or a rank without one. */
type Folded = Pick<ShownRow, "rank" | "track">;

/** All rows of a timeline, those that are in view, and what changes them. */
export interface Rows {
  tracks: Map<number, Track[]>;
  list: ShownRow[];
  /** The height of all rows, and of those that are in view from `top` on; pixels. */
  total: number;
  height: number;
  top: number;
  visible: ShownRow[];
  /** The ranks in view, from the top. */
  here: number[];
  filter: string;
  setFilter: (text: string) => void;
  scrollTo: (y: number) => void;
  scrollToLane: (lane: number) => void;
  isOpen: (row: Folded) => boolean;
  /** Fold or unfold a track, or a rank. */
  fold: (row: Folded) => void;
  isPinned: (track: Track) => boolean;
  pin: (track: Track) => void;
  /** Tracks that are hidden; they are listed nowhere until all are shown again. */
  hidden: number;
  hide: (track: Track) => void;
  showHidden: () => void;
  trackOf: (span: Selected | null) => Track | undefined;
  /** Unfold what hides a span, and scroll to it. */
  reveal: (span: Selected) => void;
}

/** What the rows are made of: the rank to begin with, how many times ranks were read, and what is drawn over them. */
interface Of {
  first: number;
  read: number;
  over: Set<string>;
  /** The height that they may take, pixels. */
  most: number;
  /** What the names of its parts of the link end with. */
  suffix: string;
}

/** A set of texts that is a part of the link; until it is changed, what it is at first. */
function useSet(name: string, atFirst: () => Set<string>): [Set<string>, (next: Set<string>) => void] {
  const [usual] = useState(atFirst);
  const text = link.value[name];
  const found = useMemo(() => (text === undefined ? usual : new Set(text.split(",").filter((one) => one !== "-"))), [text, usual]);
  return [found, (next) => go({ [name]: [...next].join() || "-" })];
}

export function useRows(api: Api, { first, read, over, most, suffix }: Of): Rows {
  const { ranks, of } = api;
  const job = of.ranks.length > 1;
  const tracks = useMemo(() => new Map([...ranks.known.keys()].map((rank) => [rank, tracksOf(ranks, rank)] as [number, Track[]])), [api, read]);
  const [unfolded, setUnfolded] = useSet(`unfold${suffix}`, () => openAtFirst(tracks.get(first) ?? [], job));
  const [pinned, setPinned] = useSet(`pin${suffix}`, () => (job ? new Set<string>() : pinnedAtFirst(tracks.get(first) ?? [])));
  const [hidden, setHidden] = useSet(`hide${suffix}`, () => new Set<string>());
  const [wholly, setWhole] = useSet(`whole${suffix}`, () => new Set<string>());
  const whole = useMemo(() => new Set([...wholly].map(Number)), [wholly]);
  const filter = link.value[`lanes${suffix}`] ?? "";
  const [wanted, scrollToLane] = useState<number | null>(null);
  const [idle, path] = [over.has("idle"), over.has("path")];
  const { list, height: total } = useMemo(
    () => layOut(of.ranks.map((row) => (ranks.failed.has(row.rank) ? { ...row, absent: ranks.failed.get(row.rank)! } : row)), tracks, { job, filter, unfolded, pinned, hidden, whole, idle, path }),
    [tracks, unfolded, pinned, hidden, whole, filter, idle, path],
  );
  // Ranks that were not read have room for what they will show: what lies below stays where it is.
  const height = Math.min(most, Math.max(ROW * 4, total));
  const inside = (y: number): number => Math.max(0, Math.min(total - height, y));
  const [top, setTop] = useState(() => inside((job && list.find((row) => row.what === "rank" && row.rank === first)?.y) || 0));
  const scrollTo = (y: number): void => setTop(inside(y));
  useEffect(() => {
    const row = list.find((one) => one.lane === wanted);
    if (wanted === null || !row) return;
    scrollToLane(null);
    if (row.y < top || row.y + ROW > top + height) scrollTo(row.y - height / 2);
  }, [wanted, list]);

  const visible = list.filter((row) => row.y + ROW > top && row.y < top + height);
  const trackOf = (span: Selected | null): Track | undefined => (span ? tracks.get(span.rank)?.find((one) => one.lanes.includes(span.lane)) : undefined);
  const reveal = (span: Selected): void => {
    const track = trackOf(span);
    if (track && hidden.has(track.key)) setHidden(toggled(hidden, track.key));
    if (track && !unfolded.has(track.key) && track.outline !== span.lane) setUnfolded(new Set([...unfolded, track.key]));
    if (track && job && !whole.has(span.rank) && !mainTracks(tracks.get(span.rank)!).includes(track)) setWhole(new Set([...wholly, String(span.rank)]));
    scrollToLane(span.lane);
  };
  return {
    tracks, list, total, height, top, visible, here: [...new Set(visible.map((row) => row.rank))], filter, scrollTo, scrollToLane, trackOf, reveal,
    setFilter: (text) => { go({ [`lanes${suffix}`]: text }); setTop(0); },
    isOpen: (row) => (row.track ? unfolded.has(row.track.key) : whole.has(row.rank)),
    fold: (row) => (row.track ? setUnfolded(toggled(unfolded, row.track.key)) : setWhole(toggled(wholly, String(row.rank)))),
    isPinned: (track) => pinned.has(track.key),
    pin: (track) => setPinned(toggled(pinned, track.key)),
    hidden: hidden.size,
    hide: (track) => setHidden(new Set([...hidden, track.key])),
    showHidden: () => setHidden(new Set()),
  };
}

/** Tracks that are open at first: the main thread and the busiest stream; of a job, a deep thread would hide the other ranks. */
function openAtFirst(tracks: Track[], job: boolean): Set<string> {
  return new Set(mainTracks(tracks).filter((track) => !job || track.lanes.length <= 8).map((track) => track.key));
}

/** The busiest stream is pinned at first, so that it is seen above a deep thread. */
function pinnedAtFirst(tracks: Track[]): Set<string> {
  return new Set(mainTracks(tracks).filter((track) => track.kind === "stream").map((track) => track.key));
}

const toggled = <T,>(set: Set<T>, key: T): Set<T> => {
  const next = new Set(set);
  if (!next.delete(key)) next.add(key);
  return next;
};
