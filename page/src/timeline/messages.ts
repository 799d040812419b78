// What page and worker say to each other. Lanes and names are numbered over all ranks; times are the run's.

import type { Theme } from "../colours";
import type { Columns } from "../source";
import type { Found } from "./query";

/** A row of the picture: a lane by its number, and by its number in its rank; those of the critical path are drawn at `y`, too. */
export interface Row {
  rank: number;
  lane: number;
  own: number;
  y: number;
  path: boolean;
}

/** What is to be seen; `number` counts what the page asked for. */
export interface View {
  number: number;
  a: number;
  b: number;
  rows: Row[];
  width: number;
  height: number;
  scale: number;
  rowHeight: number;
  theme: Theme;
  selected: number;
  selectedRank: number;
  found: Found | null;
}

export type ToWorker =
  | { what: "open"; canvas: OffscreenCanvas; token: string; base: string; columns: Columns | null; edges: number[]; kinds: string[] }
  | { what: "rank"; rank: number; shift: number; slope: number; codes: number[]; lanes: number[] }
  | { what: "names"; names: Record<number, string> }
  | { what: "view"; view: View };

export type FromWorker =
  | { what: "drawn"; ms: number; spans: number; stale: boolean }
  | { what: "names"; codes: number[] }
  | { what: "hits"; view: number; lanes: number[]; number: number[]; start: Float64Array; width: Float64Array; place: Float64Array; name: Float64Array; kind: Uint8Array }
  | { what: "failed"; message: string };
