// A picture of some lanes: spans of at least a pixel as they are, the rest as cover of pixels. From the server, or made
// here from the spans that a file holds. Format of the bytes: `encode` in stepscope/view/pyramid.py.

import type { Columns } from "../source";

export interface Frame {
  rank: number;
  a: number;
  b: number;
  unit: number;
  pixels: number;
  lanes: number[];
  number: number[];
  start: ArrayLike<number>;
  width: ArrayLike<number>;
  place: ArrayLike<number>;
  name: ArrayLike<number>;
  kind: ArrayLike<number>;
  cover: Uint8Array;
  under: Uint8Array;
}

/** The pictures of an answer, one after the other. */
export function decode(all: ArrayBuffer): Frame[] {
  const found: Frame[] = [];
  for (let at = 0; at < all.byteLength; ) {
    const [frame, size] = decodeOne(all, at);
    found.push(frame);
    at += size + (-size & 7);
  }
  return found;
}

function decodeOne(all: ArrayBuffer, begin: number): [Frame, number] {
  const head = new Uint32Array(all, begin, 8);
  if (head[0] !== 0x4c545353 || head[1] !== 1) throw new Error("The server answered with something else than a picture.");
  const [q, pixels, lanes, spans] = [head[2]!, head[3]!, head[4]!, head[5]!];
  const times = new BigInt64Array(all, begin + 32, 2);
  let offset = begin + 48;
  const u32 = (size: number): Uint32Array => {
    const found = new Uint32Array(all, offset, size);
    offset += 4 * size;
    return found;
  };
  const u8 = (size: number): Uint8Array => {
    const found = new Uint8Array(all, offset, size);
    offset += size;
    return found;
  };
  const table = u32(2 * lanes);
  const [start, width, place, name] = [u32(spans), u32(spans), u32(spans), u32(spans)];
  const kind = u8(spans);
  offset += -spans & 3;
  const each = (first: number): number[] => Array.from({ length: lanes }, (_, i) => table[2 * i + first]!);
  const frame = {
    rank: head[7]!, a: Number(times[0]), b: Number(times[1]), unit: 2 ** q, pixels, lanes: each(0), number: each(1),
    start, width, place, name, kind, cover: u8(lanes * pixels), under: u8(lanes * pixels),
  };
  return [frame, offset - begin];
}

/** The first span of a lane that ends after `a`, and the first that starts at or after `b`. */
export function between(columns: Columns, edges: number[], lane: number, a: number, b: number): [number, number] {
  const search = (time: number): number => {
    let low = edges[lane]!;
    let high = edges[lane + 1]!;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (columns.start[middle]! < time) low = middle + 1;
      else high = middle;
    }
    return low;
  };
  let first = search(a);
  if (first > edges[lane]! && columns.start[first - 1]! + columns.dur[first - 1]! > a) first--;
  return [first, search(b)];
}

/** Make a picture from the spans of a file. */
export function local(columns: Columns, edges: number[], of: { rank: number; lanes: number[] }, a: number, b: number, pixels: number): Frame {
  const { rank, lanes } = of;
  const each = (b - a) / pixels;
  const start: number[] = [];
  const width: number[] = [];
  const place: number[] = [];
  const name: number[] = [];
  const kind: number[] = [];
  const number: number[] = [];
  const cover = new Uint8Array(lanes.length * pixels);
  const under = new Uint8Array(lanes.length * pixels);
  const sum = new Float64Array(pixels);
  const longest = new Float64Array(pixels);
  lanes.forEach((lane, index) => {
    const [first, last] = between(columns, edges, lane, a, b);
    const before = place.length;
    sum.fill(0);
    longest.fill(-1);
    for (let i = first; i < last; i++) {
      const dur = columns.dur[i]!;
      if (dur >= each) {
        const from = Math.max(columns.start[i]!, a);
        start.push(from - a);
        width.push(Math.min(columns.start[i]! + dur, b) - from);
        place.push(i);
        name.push(columns.name[i]!);
        kind.push(columns.kind[i]!);
        continue;
      }
      const pixel = Math.min(pixels - 1, Math.max(0, Math.floor((columns.start[i]! - a) / each)));
      sum[pixel]! += dur;
      if (dur > longest[pixel]!) {
        longest[pixel] = dur;
        under[index * pixels + pixel] = columns.kind[i]!;
      }
    }
    number.push(place.length - before);
    for (let p = 0; p < pixels; p++) if (longest[p]! >= 0) cover[index * pixels + p] = Math.max(1, Math.min(255, Math.round((255 * sum[p]!) / each)));
  });
  return { rank, a, b, unit: 1, pixels, lanes, number, start, width, place, name, kind, cover, under };
}
