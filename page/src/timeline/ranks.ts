// The ranks of a timeline: their lanes and names numbered over all of them, and where their times lie on the run's.

import type { Content, Lane, RankTimeline, Step, Timeline } from "../model";
import type { Columns } from "../source";

/** A lane of the picture: of which rank, and its number there. */
export interface RankLane extends Lane {
  rank: number;
  own: number;
}

export interface Known {
  rank: number;
  shift: number;
  slope: number;
  /** The number of each of its lanes, and of each of its names. */
  lanes: number[];
  codes: number[];
  /** How many of the names are those of spans. */
  names: number;
  steps: Step[];
  overlays: boolean;
}

export const OVERLAYS = ["idle", "path"];

export class Ranks {
  readonly lanes: RankLane[] = [];
  readonly texts: string[] = [];
  readonly known = new Map<number, Known>();
  /** Ranks that cannot be read, and why. */
  readonly failed = new Map<number, string>();
  /** The names of spans; the others are those of overlays. */
  readonly ofSpans = new Set<number>();
  private readonly code = new Map<string, number>();

  constructor(content: Content, of: Timeline, private readonly columns: Columns | null) {
    this.numbered(content.names);
    for (const row of of.ranks) if (row.read) this.add(row.rank, row.read, content.names);
    columns?.name.forEach((code, i) => this.isOverlay(columns.lane[i]!) || this.ofSpans.add(code));
  }

  isOverlay(lane: number): boolean {
    return OVERLAYS.includes(this.lanes[lane]!.kind);
  }

  private numbered(names: string[]): number[] {
    return names.map((name) => {
      let code = this.code.get(name);
      if (code === undefined) {
        code = this.texts.push(name) - 1;
        this.code.set(name, code);
      }
      return code;
    });
  }

  /** Take in a rank that was read; its names are those of `names` if it does not bring its own. */
  add(rank: number, read: RankTimeline, names: string[] = []): Known {
    const codes = this.columns ? [] : this.numbered(read.names ?? names);
    for (const code of codes) this.ofSpans.add(code);
    const found: Known = { rank, shift: read.shift, slope: 1 + read.drift, lanes: [], codes, names: codes.length, steps: read.steps, overlays: read.over !== undefined };
    this.known.set(rank, found);
    this.lay(found, read.lanes);
    return found;
  }

  private lay(of: Known, lanes: Lane[]): void {
    for (const lane of lanes) of.lanes.push(this.lanes.push({ ...lane, rank: of.rank, own: of.lanes.length }) - 1);
  }

  /** Take in what is drawn over a rank. */
  addOverlays(rank: number, read: { lanes: Lane[]; names: string[] }): void {
    const of = this.known.get(rank);
    if (!of || of.overlays) return;
    of.overlays = true;
    for (const code of this.numbered(read.names)) of.codes.push(code);
    this.lay(of, read.lanes);
  }

  of(lane: number): Known {
    return this.known.get(this.lanes[lane]!.rank)!;
  }

  /** The time of the run at a time of a rank, and back. */
  toRun(rank: number, time: number): number {
    const of = this.known.get(rank)!;
    return of.shift + time * of.slope;
  }

  toRank(rank: number, time: number): number {
    const of = this.known.get(rank)!;
    return (time - of.shift) / of.slope;
  }
}
