// The whole run in two rows above the lanes: the main thread and the busiest stream, where the window lies, and where the
// search matches. A drag chooses a window, a click moves it.

import { useEffect, useRef, useState } from "preact/hooks";
import { count } from "../format";
import { theme } from "../state";
import type { Api } from "./api";
import type { Row } from "./messages";
import type { Found } from "./query";
import { usePicture } from "./picture";
import { mainTracks, type Track } from "./rows";
import type { Window } from "./window";

const ROW = 12;
/** Parts of the run of which the matches are counted. */
const BINS = 400;

interface Given {
  api: Api;
  tracks: Track[];
  time: Window;
  found: Found;
  setProblem: (text: string) => void;
}

export function Minimap({ api, tracks, time, found, setProblem }: Given) {
  const { a, b, move, all } = time;
  const picture = usePicture(api, setProblem);
  const from = useRef<number | null>(null);
  const lanes = mainTracks(tracks).map((track) => track.outline);
  const height = ROW * Math.max(1, lanes.length);
  useEffect(() => {
    const rows: Row[] = lanes.map((lane, i) => ({ rank: api.ranks.lanes[lane]!.rank, lane, own: api.ranks.lanes[lane]!.own, y: ROW * i, path: false }));
    picture.draw({ a: all[0], b: all[1], rows, width: picture.width, height, scale: 1, rowHeight: ROW, theme: theme.value, selected: -1, selectedRank: -1, found: found.codes.length ? found : null });
  }, [api, lanes.join(), all.join(), picture.width, found, theme.value]);
  const at = (event: PointerEvent): number => {
    const { left, width } = (event.currentTarget as HTMLElement).getBoundingClientRect();
    return all[0] + ((all[1] - all[0]) * Math.max(0, Math.min(width, event.clientX - left))) / width;
  };
  const share = (part: number): string => `${(100 * part) / (all[1] - all[0])}%`;
  const moved = (event: PointerEvent, end: boolean): void => {
    const start = from.current;
    if (start === null) return;
    const to = at(event);
    const drawn = Math.abs(to - start) > (4 * (all[1] - all[0])) / picture.width;
    if (drawn) move(Math.min(start, to), Math.max(start, to), end);
    else if (end) move(to - (b - a) / 2, to + (b - a) / 2, true);
    if (end) from.current = null;
  };
  return (
    <div class="minimap" style={{ height: `${height + 4}px` }}>
      <span class="muted">{api.of.spans < api.of.of ? "all of this file" : "whole run"}</span>
      <div class="whole" title="drag: show this part of the run"
        onPointerDown={(event) => { from.current = at(event); event.currentTarget.setPointerCapture(event.pointerId); }}
        onPointerMove={(event) => moved(event, false)} onPointerUp={(event) => moved(event, true)}>
        <div ref={picture.holder} class="picture" />
        <Matches api={api} found={found} all={all} />
        <i class="here" style={{ left: share(a - all[0]), width: share(b - a) }} />
      </div>
    </div>
  );
}

function Matches({ api, found, all }: { api: Api; found: Found; all: [number, number] }) {
  const [bins, setBins] = useState<number[]>([]);
  useEffect(() => {
    let current = true;
    setBins([]);
    if (found.codes.length) void api.bins(found, all, BINS).then((value) => current && setBins(value), () => undefined);
    return () => void (current = false);
  }, [api, found, all.join()]);
  const marked = bins.flatMap((number, i) => (number ? [i] : []));
  return (
    <svg class="matches" viewBox={`0 0 ${BINS} 4`} preserveAspectRatio="none" role="img" aria-label={`matches lie in ${count(marked.length)} of ${BINS} parts of the run`}>
      <path d={marked.map((i) => `M${i} 0h1v4h-1z`).join("")} />
    </svg>
  );
}
