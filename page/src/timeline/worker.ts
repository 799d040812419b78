// Fetches pictures and draws them without a GPU: one row of pixels a lane, copied down; text on top.

import { colourOf, drawnAs, GROUND, isOverlay, labelOn, overlayColour, rgb, type Theme } from "../colours";
import { shown } from "../format";
import { decode, local, type Frame } from "./frame";
import { finder, ofModule } from "./query";
import type { FromWorker, Row, ToWorker, View } from "./messages";

type Opened = Extract<ToWorker, { what: "open" }>;
type Rank = Extract<ToWorker, { what: "rank" }>;

const say = (message: FromWorker, transfer: Transferable[] = []): void => (self as unknown as Worker).postMessage(message, transfer);

let opened: Opened | null = null;
let context: OffscreenCanvasRenderingContext2D | null = null;
let image: ImageData | null = null;
let pixels = new Uint32Array(0);
let frames: Frame[] = [];
const ranks = new Map<number, Rank>();
let wanted: View | null = null;
let last: View | null = null;
let busy = false;
const names: Record<number, string> = {};
const asked = new Set<number>();

const abgr = ([r, g, b]: [number, number, number]): number => (0xff000000 | (b << 16) | (g << 8) | r) >>> 0;
const mixed = (ink: string, ground: string, share: number): number => {
  const [from, to] = [rgb(ground), rgb(ink)];
  return abgr([0, 1, 2].map((i) => Math.round(from[i]! + (to[i]! - from[i]!) * share)) as [number, number, number]);
};

/** Per theme and kind 256 shades; 1 is a quarter of the colour, so that one short span is seen. */
const shades = new Map<string, Uint32Array[]>();
function shadesOf(theme: Theme): Uint32Array[] {
  let found = shades.get(theme);
  if (!found) {
    found = (opened?.kinds ?? []).map((_, kind) => Uint32Array.from({ length: 256 }, (_, i) => mixed(inkOf(kind, theme), GROUND[theme], i ? 0.25 + (0.75 * i) / 255 : 0)));
    shades.set(theme, found);
  }
  return found;
}

const inkOf = (kind: number, theme: Theme): string => {
  const name = opened?.kinds[kind] ?? "";
  return isOverlay(opened?.kinds ?? [], kind) ? overlayColour(name, theme) : colourOf(name, theme);
};

/** Where a lane lies in the pictures: which picture, which of its lanes, and the first span. */
interface Place {
  of: Frame;
  index: number;
  first: number;
}

function places(): Map<number, Place> {
  const found = new Map<number, Place>();
  for (const of of frames) {
    let first = 0;
    of.lanes.forEach((lane, index) => {
      found.set(lane, { of, index, first });
      first += of.number[index]!;
    });
  }
  return found;
}

/** What is added to the kind of a piece of an overlay that is too narrow to be hatched. */
const narrow = (kind: number): number => (isOverlay(opened?.kinds ?? [], kind) ? 64 : 0);

interface Label {
  x: number;
  y: number;
  width: number;
  name: number;
  colour: string;
  kind: number;
}

function draw(view: View): number {
  const begin = performance.now();
  if (!context || !opened) return 0;
  const [width, height] = [Math.round(view.width * view.scale), Math.round(view.height * view.scale)];
  if (!image || image.width !== width || image.height !== height) {
    context.canvas.width = width;
    context.canvas.height = height;
    image = context.createImageData(width, height);
    pixels = new Uint32Array(image.data.buffer);
  }
  const ground = abgr(rgb(GROUND[view.theme]));
  pixels.fill(ground);
  const [labels, path]: [Label[], Piece[]] = [[], []];
  const known = places();
  const found = view.found && finder(view.found);
  const inModule = view.found && ofModule(view.found);
  const tall = Math.max(3, Math.round((view.rowHeight - 2) * view.scale));
  for (const row of view.rows) {
    const place = known.get(row.lane);
    const top = Math.round(row.y * view.scale);
    if (!place || top + tall < 0 || top >= height) continue;
    if (row.path) underline(view, place, row.rank, top + tall, width, height, path);
    else {
      const line = new Uint32Array(width).fill(ground);
      const kinds = new Uint8Array(width).fill(255);
      shade(view, place, line, kinds);
      spell(view, place, row.rank, { line, kinds, found, inModule, label: (one) => labels.push({ ...one, y: top }) });
      paint(line, kinds, top, tall, width, height, ground);
    }
  }
  join(path, width, height, view);
  context.putImageData(image, 0, 0);
  write(labels, tall, view);
  return performance.now() - begin;
}

/** A row of the picture that is being drawn: its pixels, their kinds, and where its labels go. */
interface Line {
  line: Uint32Array;
  kinds: Uint8Array;
  found: ReturnType<typeof finder> | null;
  inModule: ReturnType<typeof ofModule> | null;
  label: (one: Omit<Label, "y">) => void;
}

/** Rows of fewer pixels have no room for names. */
const LABELLED = 14;

/** Spans of at least a pixel, as they are: those that the search did not find are faint, the selected one has an edge. */
function spell(view: View, { of, index, first }: Place, rank: number, { line, kinds, found, inModule, label }: Line): void {
  const all = opened?.kinds ?? [];
  const palette = shadesOf(view.theme);
  const ground = abgr(rgb(GROUND[view.theme]));
  const [ink, edge] = view.theme === "dark" ? ["#e6e8eb", 0xffffffff] : ["#1a1d21", 0xff000000];
  const width = line.length;
  const perNs = width / (view.b - view.a);
  const offset = (of.a - view.a) * perNs;
  for (let i = first, end = i + of.number[index]!; i < end; i++) {
    const left = offset + of.start[i]! * of.unit * perNs;
    const right = left + of.width[i]! * of.unit * perNs;
    if (right < 0 || left >= width) continue;
    const from = Math.max(0, Math.floor(left));
    const to = Math.min(width, Math.max(from + 1, Math.floor(right)));
    const kind = of.kind[i]!;
    const cut = of.start[i]! === 0 || right >= offset + (of.b - of.a) * perNs;
    const faint = found !== null && !(inModule!(rank, of.place[i]!) && found(of.name[i]!, kind, of.lanes[index]!, cut ? null : of.width[i]! * of.unit));
    line.fill(palette[kind]![faint ? 40 : 255]!, from, to);
    kinds.fill(kind + (to - from < 6 ? narrow(kind) : 0), from, to);
    if (to - from > 2 && right < width) line[to - 1] = ground;
    if (of.place[i] === view.selected && rank === view.selectedRank) for (const x of [from, from + 1, to - 2, to - 1]) if (x >= from && x < to) line[x] = edge;
    if (to - from <= 34 * view.scale || view.rowHeight < LABELLED) continue;
    const plain = faint || isOverlay(all, kind);
    label({ x: from, width: to - from, name: of.name[i]!, kind, colour: plain || drawnAs(all[kind] ?? "") === "half" ? ink : labelOn(colourOf(all[kind] ?? "", view.theme)) });
  }
}

/** Spans of less than a pixel, as the share of each pixel that they cover. */
function shade(view: View, { of, index }: Place, line: Uint32Array, kinds: Uint8Array): void {
  const palette = shadesOf(view.theme);
  const width = line.length;
  const perNs = width / (view.b - view.a);
  const each = ((of.b - of.a) / of.pixels) * perNs;
  const offset = (of.a - view.a) * perNs;
  for (let p = 0, at = index * of.pixels; p < of.pixels; p++) {
    const cover = of.cover[at + p]!;
    if (!cover) continue;
    const from = Math.max(0, Math.floor(offset + p * each));
    const to = Math.min(width, Math.max(from + 1, Math.floor(offset + (p + 1) * each)));
    for (let x = from; x < to; x++) {
      line[x] = palette[of.under[at + p]!]![cover]!;
      kinds[x] = of.under[at + p]! + narrow(of.under[at + p]!);
    }
  }
}

/** The size of a name in pixels, and where it lies on a bar: above one of half the height, inside the others. */
const FONT = { full: [11, 0.5], hatched: [11, 0.5], half: [10, 0.28], thin: [9.5, 0.54] } as const;

/** Write the names on the spans; those that are not known here are asked of the page, once. */
function write(labels: Label[], tall: number, view: View): void {
  if (!context) return;
  const missing = new Set<number>();
  context.textBaseline = "middle";
  for (const label of labels) {
    const text = names[label.name];
    if (text === undefined) {
      missing.add(label.name);
      continue;
    }
    context.save();
    context.beginPath();
    context.rect(label.x, label.y, label.width - 3, tall);
    context.clip();
    context.fillStyle = label.colour;
    const [font, at] = isOverlay(opened!.kinds, label.kind) ? FONT.full : FONT[drawnAs(opened!.kinds[label.kind] ?? "")];
    context.font = `${font * view.scale}px system-ui, sans-serif`;
    context.fillText(shown(text, 120), label.x + 4 * view.scale, label.y + tall * at);
    context.restore();
  }
  const fresh = [...missing].filter((code) => !asked.has(code)).slice(0, 500);
  for (const code of fresh) asked.add(code);
  if (fresh.length) say({ what: "names", codes: fresh });
}

/** A piece of the critical path in the picture, in pixels. */
interface Piece {
  rank: number;
  from: number;
  to: number;
  y: number;
}

const pathInk = (theme: Theme): number => (theme === "dark" ? 0xffffffff : 0xff000000);

/** The critical path on a lane: a line along its bottom, apart from what lies above it. */
function underline(view: View, { of, index, first }: Place, rank: number, bottom: number, width: number, height: number, path: Piece[]): void {
  const perNs = width / (view.b - view.a);
  const offset = (of.a - view.a) * perNs;
  const thick = Math.max(3, Math.round(3 * view.scale));
  const [ink, ground] = [pathInk(view.theme), abgr(rgb(GROUND[view.theme]))];
  const on = (from: number, to: number): void => {
    for (let y = Math.max(0, bottom - thick - 1); y < Math.min(height, bottom); y++) pixels.fill(y < bottom - thick ? ground : ink, y * width + from, y * width + to);
  };
  const each = ((of.b - of.a) / of.pixels) * perNs;
  for (let p = 0, at = index * of.pixels; p < of.pixels; p++) {
    if (of.cover[at + p]! < 128) continue;
    const from = Math.max(0, Math.floor(offset + p * each));
    if (from < width) on(from, Math.min(width, Math.max(from + 1, Math.floor(offset + (p + 1) * each))));
  }
  for (let i = first, end = i + of.number[index]!; i < end; i++) {
    const left = offset + of.start[i]! * of.unit * perNs;
    const right = left + of.width[i]! * of.unit * perNs;
    if (right < 0 || left >= width) continue;
    const from = Math.max(0, Math.floor(left));
    const to = Math.min(width, Math.max(from + 1, Math.floor(right)));
    on(from, to);
    path.push({ rank, from, to, y: bottom - 1 });
  }
}

/** Lines from where the path leaves a lane to where it goes on. */
function join(path: Piece[], width: number, height: number, view: View): void {
  path.sort((one, other) => one.rank - other.rank || one.from - other.from);
  path.forEach((piece, i) => {
    const before = path[i - 1];
    if (!before || before.rank !== piece.rank || before.y === piece.y || piece.from - before.to > 2 || piece.from >= width) return;
    for (let y = Math.max(0, Math.min(piece.y, before.y)); y <= Math.min(height - 1, Math.max(piece.y, before.y)); y++) pixels[y * width + piece.from] = pathInk(view.theme);
  });
}

/** Copy one row of pixels down; waits take the lower half, host bookkeeping is thin, overhead hatched. */
function paint(line: Uint32Array, kinds: Uint8Array, top: number, tall: number, width: number, height: number, ground: number): void {
  const all = opened?.kinds ?? [];
  const drawn = all.map((kind, i) => (isOverlay(all, i) ? "idle" : drawnAs(kind)));
  const plain = !kinds.some((kind) => kind !== 255 && drawn[kind] !== "full");
  for (let y = 0; y < tall; y++) {
    const at = (top + y) * width;
    if (top + y < 0 || top + y >= height) continue;
    if (plain) {
      pixels.set(line, at);
      continue;
    }
    for (let x = 0; x < width; x++) {
      const how = drawn[kinds[x]!];
      const out = (how === "half" && y < tall * 0.55) || (how === "thin" && (y < tall * 0.2 || y >= tall * 0.8)) || (how === "hatched" && (x + y) % 6 < 2) || (how === "idle" && (x + y) % 8 > 1 && y > 1 && y < tall - 2);
      pixels[at + x] = out ? ground : line[x]!;
    }
  }
}

/** Say where the spans of the pictures of a view are, so that the page knows what is under the pointer. */
function tell(view: number): void {
  const size = spans();
  const found = { start: new Float64Array(size), width: new Float64Array(size), place: new Float64Array(size), name: new Float64Array(size), kind: new Uint8Array(size) };
  let at = 0;
  for (const of of frames) {
    for (let i = 0; i < of.place.length; i++, at++) {
      found.start[at] = of.a + of.start[i]! * of.unit;
      found.width[at] = of.width[i]! * of.unit;
    }
    for (const column of ["place", "name", "kind"] as const) found[column].set(of[column], at - of.place.length);
  }
  say({ what: "hits", view, lanes: frames.flatMap((of) => of.lanes), number: frames.flatMap((of) => of.number), ...found });
}

interface Part {
  rank: number;
  lanes: number[];
  a: number;
  b: number;
}

async function load(view: View): Promise<Frame[]> {
  const size = view.b - view.a;
  // A quarter more on either side: small moves need no answer.
  const [a, b] = [view.a - size / 4, view.b + size / 4];
  const wide = Math.min(8192, Math.max(1, Math.round(view.width * view.scale * 1.5)));
  const rows = new Map<number, Row[]>();
  for (const row of view.rows) if (ranks.has(row.rank)) rows.set(row.rank, [...(rows.get(row.rank) ?? []), row]);
  const parts: Part[] = [...rows].map(([rank, of]) => {
    const { shift, slope } = ranks.get(rank)!;
    const lanes = [...new Set(of.map((row) => (opened!.columns ? row.lane : row.own)))];
    return { rank, lanes, a: Math.floor((a - shift) / slope), b: Math.ceil((b - shift) / slope) };
  });
  if (!parts.length) return [];
  if (opened!.columns) return parts.map((part) => placed(local(opened!.columns!, opened!.edges, part, part.a, part.b, wide)));
  const answer = await fetch(`${opened!.base}api/frame`, {
    method: "POST",
    headers: { "X-Stepscope-Token": opened!.token, "Content-Type": "application/json" },
    body: JSON.stringify({ parts, px: wide }),
  });
  if (!answer.ok) throw new Error(await answer.text());
  return decode(await answer.arrayBuffer()).map(placed);
}

/** A picture by the times of the run, with the numbers of lanes and names over all ranks. */
function placed(of: Frame): Frame {
  const { shift, slope, lanes, codes } = ranks.get(of.rank)!;
  const numbered = opened!.columns ? {} : { lanes: of.lanes.map((own) => lanes[own]!), name: Array.from(of.name, (own) => codes[own]!) };
  return { ...of, a: shift + of.a * slope, b: shift + of.b * slope, unit: of.unit * slope, ...numbered };
}

const spans = (): number => frames.reduce((sum, of) => sum + of.place.length, 0);

async function show(view: View): Promise<void> {
  last = view;
  if (frames.length) say({ what: "drawn", ms: draw(view), spans: spans(), stale: true });
  wanted = view; // one request under way, the latest view wins
  if (busy) return;
  busy = true;
  try {
    while (wanted) {
      const now: View = wanted;
      wanted = null;
      frames = await load(now);
      tell(now.number);
      say({ what: "drawn", ms: draw(wanted ?? now), spans: spans(), stale: wanted !== null });
    }
  } catch (error) {
    say({ what: "failed", message: error instanceof Error ? error.message : String(error) });
  } finally {
    busy = false;
  }
}

onmessage = (event: MessageEvent<ToWorker>): void => {
  const message = event.data;
  if (message.what === "open") {
    opened = message;
    frames = [];
    context = message.canvas.getContext("2d", { alpha: false, willReadFrequently: true });
  } else if (message.what === "rank") {
    ranks.set(message.rank, message);
  } else if (message.what === "names") {
    Object.assign(names, message.names);
    if (last && frames.length) draw(last);
  } else void show(message.view);
};
