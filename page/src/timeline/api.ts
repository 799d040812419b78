// What the timeline asks: of the server, or of the spans in this file. Lanes, names and times are the run's; the server is
// asked by those of each rank.

import { count, duration } from "../format";
import type { Content, Lane, RankTimeline, Timeline } from "../model";
import type { Columns, Source } from "../source";
import { between } from "./frame";
import { finder, type Found, parsed } from "./query";
import { Ranks } from "./ranks";

/** A span: its place among those of its rank (of a file, of all), its lane and name over all ranks, its times on the run's timeline. */
export interface Selected {
  rank: number;
  place: number;
  lane: number;
  start: number;
  dur: number;
  name: number;
  kind: number;
}

export interface Arrow {
  kind: string;
  leaves: boolean;
  span: Selected;
}

/** An arrow between two spans. */
export interface Chained {
  kind: string;
  from: Selected;
  to: Selected;
}

/** The device work that was launched inside a span. */
export interface Launched {
  count: number;
  total: number;
  longest: Selected[];
}

export interface Facts {
  span: Selected;
  facts: [string, string][];
  flows: Arrow[];
  kernels: Launched | null;
}

export interface Statistic {
  name: number;
  count: number;
  total: number;
  self: number;
  least: number;
  most: number;
}

export type Which = "next" | "previous" | "same" | "same-back" | "parent" | "child";

const ARROWS = ["launch", "forward_backward", "send_receive", "other", "wait"];
const MOST_KERNELS = 50;
/** Arrows that are shown at once. */
export const MOST_FLOWS = 500;

type OfRank = Omit<Selected, "rank">;

export class Api {
  /** Of the spans of a file, the first of each lane. */
  readonly edges: number[];
  readonly ranks: Ranks;
  private readonly columns: Columns | null;
  private readonly asked = new Map<number, Promise<string>>();

  constructor(readonly source: Source, content: Content, readonly of: Timeline) {
    this.columns = source.columns;
    this.ranks = new Ranks(content, of, this.columns);
    this.edges = this.columns ? edgesOf(this.columns, this.ranks.lanes.length) : [];
  }

  name(code: number): string {
    return this.ranks.texts[code] ?? "…";
  }

  async names(codes: number[]): Promise<Record<number, string>> {
    return Object.fromEntries(codes.map((code) => [code, this.name(code)]));
  }

  /** What a search finds, of the ranks that were read; no name if it is empty, or cannot be understood. */
  search(text: string): Found & { problem: string } {
    const { name, kinds, lane, least, most, module, problem } = parsed(text);
    const none = !text.trim() || problem !== "";
    const known = kinds.flatMap((kind) => this.of.kinds.flatMap((one, i) => (one.includes(kind) ? [i] : [])));
    const lanes = this.ranks.lanes.flatMap((one, i) => (!this.ranks.isOverlay(i) && `rank ${one.rank} ${one.group} ${one.name}`.toLowerCase().includes(lane) ? [i] : []));
    const impossible = (kinds.length > 0 && !known.length) || (lane !== "" && !lanes.length);
    const found = { codes: [] as number[], kinds: known, lanes: lane ? lanes : null, least, most, module, bits: null, problem };
    try {
      if (!none && !impossible) found.codes = this.ranks.texts.flatMap((one, i) => (this.ranks.ofSpans.has(i) && name(one) ? [i] : []));
    } catch (error) {
      found.problem = `the regular expression ${(error as Error).message}`;
    }
    return found;
  }

  private async ask<T>(path: string, body: object): Promise<T> {
    return (await (await this.answer(path, body)).json()) as T;
  }

  private async answer(path: string, body: object): Promise<Response> {
    const answer = await fetch(`${this.source.base}api/${path}`, {
      method: "POST",
      headers: { "X-Stepscope-Token": this.source.token, "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
    if (!answer.ok) throw new Error(await answer.text());
    return answer;
  }

  /** Read a rank that was not read yet; an empty text, or why that cannot be. */
  read(rank: number): Promise<string> {
    let found = this.asked.get(rank);
    if (!found) {
      found = this.ask<RankTimeline>("lanes", { rank }).then(
        (read) => {
          this.ranks.add(rank, read);
          return "";
        },
        (error: unknown) => String(error instanceof Error ? error.message : error),
      );
      this.asked.set(rank, found);
    }
    return found;
  }

  /** Read what is drawn over a rank. */
  async overlays(rank: number): Promise<void> {
    const known = this.ranks.known.get(rank);
    if (known && !known.overlays) this.ranks.addOverlays(rank, await this.ask<{ lanes: Lane[]; names: string[] }>("overlays", { rank }));
  }

  /** The window as a file of Perfetto's format. */
  async perfetto(ranks: number[], a: number, b: number): Promise<Blob> {
    return (await this.answer("perfetto", { parts: ranks.map((rank) => this.part(rank, a, b)) })).blob();
  }

  private part(rank: number, a: number, b: number): { rank: number; a: number; b: number } {
    return { rank, a: Math.floor(this.ranks.toRank(rank, a)), b: Math.ceil(this.ranks.toRank(rank, b)) };
  }

  private taken(rank: number, span: OfRank): Selected {
    const { lanes, codes, slope } = this.ranks.known.get(rank)!;
    return { ...span, rank, lane: lanes[span.lane]!, name: codes[span.name]!, start: this.ranks.toRun(rank, span.start), dur: span.dur * slope };
  }

  async span(rank: number, place: number): Promise<Facts | null> {
    if (!this.columns) {
      if (!this.ranks.known.has(rank)) await this.read(rank);
      const found = await this.ask<{ span: OfRank; facts: [string, string][]; flows: { kind: string; leaves: boolean; span: OfRank }[]; kernels: { count: number; total: number; longest: OfRank[] } | null }>("span", { rank, place });
      if (found.span.lane >= this.ranks.known.get(rank)!.lanes.length) await this.overlays(rank);
      const { kernels } = found;
      return {
        span: this.taken(rank, found.span), facts: found.facts,
        flows: found.flows.map((one) => ({ ...one, span: this.taken(rank, one.span) })),
        kernels: kernels && { ...kernels, longest: kernels.longest.map((one) => this.taken(rank, one)) },
      };
    }
    const span = this.at(place);
    if (!span) return null;
    const lane = this.ranks.lanes[span.lane]!;
    const around = this.parent(span);
    const row = this.columns.row[place]!;
    return {
      span, flows: this.arrows(span), kernels: this.launched(span),
      facts: [
        ["kind", this.of.kinds[span.kind] ?? ""],
        ["start", `${duration(this.columns.start[place]!)} after the first`],
        ["duration", `${duration(this.columns.dur[place]!)} (${count(this.columns.dur[place]!)} ns)`],
        ["lane", `${lane.group} · ${lane.name}`],
        ...(around ? [["inside", this.name(around.name)] as [string, string]] : []),
        ...(row ? [["row of spans", String(row - 1)] as [string, string]] : []),
      ],
    };
  }

  private at(place: number): Selected | null {
    const columns = this.columns;
    if (!columns || !(place >= 0 && place < columns.start.length)) return null;
    const lane = columns.lane[place]!;
    const { rank, slope } = this.ranks.of(lane);
    return { rank, place, lane, start: this.ranks.toRun(rank, columns.start[place]!), dur: columns.dur[place]! * slope, name: columns.name[place]!, kind: columns.kind[place]! };
  }

  private arrows(span: Selected): Arrow[] {
    const { begin, end, arrow } = this.columns!;
    const found: Arrow[] = [];
    for (let i = 0; i < begin.length && found.length < MOST_FLOWS; i++) {
      const leaves = begin[i] === span.place;
      if (!leaves && end[i] !== span.place) continue;
      const other = this.at(leaves ? end[i]! : begin[i]!);
      if (other) found.push({ kind: ARROWS[arrow[i]!] ?? "other", leaves, span: other });
    }
    return found;
  }

  /** The arrows from a span onwards, and those that lead to it: the nearest 500. */
  async chain({ rank, place }: Selected): Promise<Chained[]> {
    if (!this.columns) {
      const found = await this.ask<{ kind: string; from: OfRank; to: OfRank }[]>("chain", { rank, place });
      return found.map(({ kind, from, to }) => ({ kind, from: this.taken(rank, from), to: this.taken(rank, to) }));
    }
    const found = new Set<number>();
    const left: [at: number, onward: boolean][] = [[place, true], [place, false]];
    const seen = new Set(left.map(String));
    for (let next = left.shift(); next && found.size < MOST_FLOWS; next = left.shift()) {
      const [at, onward] = next;
      const [near, far] = onward ? [this.columns.begin, this.columns.end] : [this.columns.end, this.columns.begin];
      for (let i = 0; i < near.length && found.size < MOST_FLOWS; i++) {
        if (near[i] !== at) continue;
        found.add(i);
        const other: [number, boolean] = [far[i]!, onward];
        if (!seen.has(String(other))) left.push(other);
        seen.add(String(other));
      }
    }
    return [...found].flatMap((i) => {
      const [from, to] = [this.at(this.columns!.begin[i]!), this.at(this.columns!.end[i]!)];
      return from && to ? [{ kind: ARROWS[this.columns!.arrow[i]!] ?? "other", from, to }] : [];
    });
  }

  private launched(span: Selected): Launched | null {
    const { begin, end, arrow, dur } = this.columns!;
    const mine = this.ranks.lanes[span.lane]!;
    const works = new Set<number>();
    for (let i = 0; i < begin.length; i++) {
      const from = arrow[i] === 0 ? this.at(begin[i]!) : null;
      if (!from || from.start < span.start || from.start + from.dur > span.start + span.dur) continue;
      const lane = this.ranks.lanes[from.lane]!;
      if (lane.rank === mine.rank && lane.track === mine.track && lane.depth >= mine.depth) works.add(end[i]!);
    }
    const all = [...works].sort((one, other) => dur[other]! - dur[one]!);
    if (!all.length) return null;
    return { count: all.length, total: all.reduce((sum, one) => sum + dur[one]!, 0), longest: all.slice(0, MOST_KERNELS).map((one) => this.at(one)!) };
  }

  /** The lane of the spans directly inside those of a lane; −1 if there is none. */
  private deeper(of: number): number {
    const lane = this.ranks.lanes[of]!;
    let best = -1;
    for (const own of this.ranks.known.get(lane.rank)!.lanes) {
      const one = this.ranks.lanes[own]!;
      if (one.kind !== lane.kind || one.track !== lane.track || one.crossing !== lane.crossing || one.depth <= lane.depth) continue;
      if (best < 0 || one.depth < this.ranks.lanes[best]!.depth) best = own;
    }
    return best;
  }

  private beside(span: Selected, deeper: number): number {
    const lane = this.ranks.lanes[span.lane]!;
    return this.ranks.lanes.findIndex((one) => one.rank === lane.rank && one.kind === lane.kind && one.track === lane.track && one.crossing === lane.crossing && one.depth === lane.depth + deeper);
  }

  private inside(span: Selected, lane: number, to: number): Selected | null {
    if (lane < 0 || !this.columns) return null;
    const start = this.columns.start[span.place]!;
    const [first, last] = between(this.columns, this.edges, lane, start, start + to);
    return first < last ? this.at(first) : null;
  }

  private parent(span: Selected): Selected | null {
    return this.inside(span, this.beside(span, -1), 1);
  }

  async neighbour(span: Selected, which: Which): Promise<Selected | null> {
    if (!this.columns) {
      const found = await this.ask<OfRank | null>("neighbour", { rank: span.rank, place: span.place, which });
      return found && this.taken(span.rank, found);
    }
    if (which === "parent") return this.parent(span);
    if (which === "child") return this.inside(span, this.beside(span, 1), this.columns.dur[span.place]!);
    if (which === "next" || which === "previous") {
      const place = span.place + (which === "next" ? 1 : -1);
      return place >= this.edges[span.lane]! && place < this.edges[span.lane + 1]! ? this.at(place) : null;
    }
    return this.next({ codes: [span.name], kinds: [], lanes: null, least: 0, most: Infinity, module: "", bits: null }, span, which === "same-back", span.rank);
  }

  /** What is searched as each rank that was read numbers it. */
  private byRank({ codes, lanes, kinds, least, most, module }: Found): { rank: number; names: number[]; lanes: number[]; kinds: number[]; least: number; most: number; module: string }[] {
    const wanted = new Set(codes);
    return [...this.ranks.known.values()].flatMap((of) => {
      const names = of.codes.flatMap((code, own) => (own < of.names && wanted.has(code) ? [own] : []));
      const mine = (lanes ?? []).flatMap((lane) => (this.ranks.lanes[lane]!.rank === of.rank ? [this.ranks.lanes[lane]!.own] : []));
      return names.length && (!lanes || mine.length) ? [{ rank: of.rank, names, lanes: mine, kinds, least: Math.ceil(least / of.slope), most: Math.floor(most / of.slope), module }] : [];
    });
  }

  /** The places of the spans of a file that a search finds. */
  private places(found: Found): number[] {
    const { name, kind, lane, dur, module } = this.columns!;
    const is = finder(found);
    const modules = new Set((this.of.modules ?? []).flatMap((one, i) => (one.toLowerCase().includes(found.module) ? [i + 1] : [])));
    const places: number[] = [];
    for (let i = 0; i < name.length; i++) if ((!found.module || modules.has(module[i]!)) && is(name[i]!, kind[i]!, lane[i]!, dur[i]!) && !this.ranks.isOverlay(lane[i]!)) places.push(i);
    return places;
  }

  /** The spans of a search for a module, as a bit for each place of the ranks that were read; null of another search. */
  async bits(found: Found): Promise<Found["bits"]> {
    if (!found.module || !found.codes.length) return null;
    if (!this.columns) {
      const read = this.byRank(found).map(async (part) => [part.rank, new Uint8Array(await (await this.answer("bits", { parts: [part] })).arrayBuffer())] as const);
      return new Map(await Promise.all(read));
    }
    const all = new Uint8Array(Math.ceil(this.columns.start.length / 8));
    for (const place of this.places(found)) all[place >> 3]! |= 1 << (place & 7);
    return new Map([...this.ranks.known.keys()].map((rank) => [rank, all]));
  }

  async count(found: Found): Promise<number> {
    if (this.columns) return this.places(found).length;
    return (await this.inParts(this.byRank(found), (parts) => this.ask<number>("count", { parts }))).reduce((sum, one) => sum + one, 0);
  }

  /** How many of the spans start in each of `bins` equal parts of the run. */
  async bins(wanted: Found, [a, b]: [number, number], bins: number): Promise<number[]> {
    const found = new Array<number>(bins).fill(0);
    if (this.columns) {
      for (const place of this.places(wanted)) {
        const bin = Math.floor(((this.at(place)!.start - a) / (b - a)) * bins);
        if (bin >= 0 && bin < bins) found[bin]! += 1;
      }
      return found;
    }
    const parts = this.byRank(wanted).map((part) => ({ ...part, ...this.part(part.rank, a, b) }));
    const answers = await this.inParts(parts, (some) => this.ask<number[][]>("bins", { parts: some, px: bins }));
    for (const each of answers.flat()) each.forEach((number, i) => (found[i]! += number));
    return found;
  }

  private inParts<P, T>(parts: P[], ask: (parts: P[]) => Promise<T>): Promise<T[]> {
    const some: P[][] = [];
    for (let i = 0; i < parts.length; i += 64) some.push(parts.slice(i, i + 64));
    return Promise.all(some.map(ask));
  }

  /** The span that comes next in time, over all ranks that were read; before it if `back`. */
  async find(wanted: Found, after: Selected | null, back: boolean): Promise<Selected | null> {
    if (!wanted.codes.length) return null;
    if (this.columns) return this.next(wanted, after, back, null);
    const from = after?.start ?? (back ? this.of.end + 1 : this.of.begin - 1);
    // At one time the ranks come in order of their numbers.
    const parts = this.byRank(wanted).map((part) => {
      const { rank } = part;
      const tie = after && rank !== after.rank ? (back ? Number(rank < after.rank) : -Number(rank > after.rank)) : 0;
      return { ...part, a: Math.round(this.ranks.toRank(rank, from)) + tie };
    });
    const answers = (await this.inParts(parts, (some) => this.ask<(OfRank | null)[]>("find", { parts: some, back }))).flat();
    const spans = answers.flatMap((one, i) => (one ? [this.taken(parts[i]!.rank, one)] : []));
    const ahead = (one: Selected, other: Selected): boolean => (one.start === other.start ? one.rank < other.rank : one.start < other.start) !== back;
    return spans.reduce<Selected | null>((best, one) => (!best || ahead(one, best) ? one : best), null);
  }

  private next(wanted: Found, after: Selected | null, back: boolean, rank: number | null): Selected | null {
    const from = after?.start ?? (back ? Infinity : -Infinity);
    let best: Selected | null = null;
    for (const i of this.places(wanted)) {
      if (i === after?.place) continue;
      const span = this.at(i)!;
      const later = span.start > from || (span.start === from && i > (after?.place ?? -1));
      if (later === back || (rank !== null && span.rank !== rank)) continue;
      if (!best || (back ? span.start >= best.start : span.start < best.start)) best = span;
    }
    return best;
  }

  async range(lanes: number[], a: number, b: number): Promise<Statistic[]> {
    const found = new Map<number, Statistic>();
    const add = (row: Statistic): void => {
      const sum = found.get(row.name);
      if (!sum) found.set(row.name, { ...row });
      else Object.assign(sum, { count: sum.count + row.count, total: sum.total + row.total, self: sum.self + row.self, least: Math.min(sum.least, row.least), most: Math.max(sum.most, row.most) });
    };
    const ranks = new Map<number, number[]>();
    for (const lane of lanes) {
      const { rank } = this.ranks.lanes[lane]!;
      ranks.set(rank, [...(ranks.get(rank) ?? []), lane]);
    }
    const parts = [...ranks].map(([rank, of]) => ({ ...this.part(rank, a, b), lanes: of }));
    if (this.columns) for (const part of parts) this.local(part, add);
    else {
      const asked = parts.map((part) => ({ ...part, lanes: part.lanes.map((lane) => this.ranks.lanes[lane]!.own) }));
      const answers = (await this.inParts(asked, (some) => this.ask<Statistic[][]>("range", { parts: some }))).flat();
      answers.forEach((rows, i) => rows.forEach((row) => add({ ...row, name: this.ranks.known.get(parts[i]!.rank)!.codes[row.name]! })));
    }
    return [...found.values()].sort((one, other) => other.total - one.total);
  }

  private local({ lanes, a, b }: { lanes: number[]; a: number; b: number }, add: (row: Statistic) => void): void {
    const columns = this.columns!;
    for (const lane of lanes) {
      const [first, last] = between(columns, this.edges, lane, a, b);
      const deeper = this.deeper(lane);
      let [inner, end] = deeper < 0 ? [0, 0] : between(columns, this.edges, deeper, a, b);
      const within = (i: number): number => Math.min(columns.start[i]! + columns.dur[i]!, b) - Math.max(columns.start[i]!, a);
      for (let i = first; i < last; i++) {
        const inside = within(i);
        const until = columns.start[i]! + columns.dur[i]!;
        let self = inside;
        for (; inner < end && columns.start[inner]! < until; inner++) if (columns.start[inner]! >= columns.start[i]!) self -= within(inner);
        add({ name: columns.name[i]!, count: 1, total: inside, self, least: inside, most: inside });
      }
    }
  }
}

function edgesOf(columns: Columns, lanes: number): number[] {
  const edges: number[] = [];
  let place = 0;
  for (let lane = 0; lane <= lanes; lane++) {
    while (place < columns.lane.length && columns.lane[place]! < lane) place++;
    edges.push(place);
  }
  return edges;
}
