// What the Python side writes: stepscope/report/page/content.py. Times are Numbers of ns; unknown is null, never 0.

export interface Lane {
  track: number;
  name: string;
  group: string;
  kind: string;
  depth: number;
  crossing: number;
  main: boolean;
  busy: number;
  count: number;
  /** How much of its busy time steps cover, ns. */
  stepped: number;
}

export interface Step {
  number: number;
  start: number;
  dur: number;
}

/**
 * The timeline of a rank: a time of its own becomes one of the run's timeline by `shift` + `time` × (1 + `drift`). In a
 * file, the lanes from number `over` on are overlays.
 */
export interface RankTimeline {
  shift: number;
  drift: number;
  lanes: Lane[];
  steps: Step[];
  names?: string[];
  over?: number;
  /** Of a large run, a file has no overlays. */
  withoutOverlays?: boolean;
  /** The time that `busy` of its lanes is a part of, if not all of the timeline. */
  busyOf?: number;
}

/** A rank: null `uncertainty` with a `reason` where its clock is not known. Of a job, most ranks are read when they are shown. */
export interface RankOf {
  rank: number;
  host: string | null;
  uncertainty: number | null;
  reason: string;
  read: RankTimeline | null;
  absent?: string;
}

/** The timeline of a run. In a file, `spans` of `of` spans are there, in its `windows` from `begin` to `end`. */
export interface Timeline {
  origin: string;
  /** The start of the timeline on the clock of the job, ns since the Unix epoch; null of one rank alone. */
  from: string | null;
  total: number;
  begin: number;
  end: number;
  spans: number;
  of: number;
  /** The parts of it that a file holds; missing of a server. */
  windows?: [number, number][];
  /** The modules of the spans of a file; missing of a server. */
  modules?: string[];
  kinds: string[];
  steps: Step[];
  focus: [number, number];
  ranks: RankOf[];
}

export interface Evidence {
  text: string;
  result?: string;
  source?: string;
  operator?: string;
  rank?: number;
  start_ns?: number;
  end_ns?: number;
}

/** Times are ns since the start of the timeline. */
export interface Finding {
  cause: string;
  title: string;
  gain_ns?: number;
  gain_low_ns?: number;
  gain_high_ns?: number;
  step_ns?: number;
  basis?: string;
  confidence?: string;
  evidence: Evidence[];
  remedy: string;
  check?: string;
}

export interface Part {
  name: string;
  total_ns: number;
  mean_ns: number;
  share: number;
}

export interface Entry {
  name: string;
  kind: string;
  total_ns: number;
  count: number;
  share: number;
  /** Its time in each of the steps, ns; missing where that is not known. */
  trend?: number[];
}

export interface Loss {
  what: string;
  count: number;
  severity: string;
  source: string;
  advice: string;
}

/** `signed`: changes, which are shown with + and -; `unit`: of values whose name does not say it. */
export interface Column {
  name: string;
  values: (string | number | boolean | null)[];
  signed?: boolean;
  unit?: string;
}

/** A result as a table; `of` rows are in the result, of which the first ones are here. */
export interface Result {
  title: string;
  columns: Column[];
  rows: number;
  of: number;
}

export interface RunSteps {
  number: number[];
  dur: (number | null)[];
  recorded: boolean[];
  contains: string[];
}

export interface FlameNode {
  name: number;
  kind: number;
  value: number;
  self: number;
  count: number;
  /** How long after the start of a step its first call begins, ns. */
  at: number;
  children: FlameNode[];
}

/** Its results may be without rows, and are left out then; a `pending` one is not known to be there yet. */
export interface Page {
  name: string;
  title: string;
  results: string[];
  absent: string;
  pending?: boolean;
  /** Results that are left out of a file. */
  leftOut?: string[];
}

/** What the pages of a run and of a comparison have in common. */
export interface Frame {
  version: number;
  title: string;
  path: string;
  facts: [string, string][];
  rank: number;
  ranks: number[];
  losses: Loss[];
  pages: Page[];
  results: Record<string, Result>;
  listed?: boolean;
  recording?: boolean;
}

/** What takes long to compute, by the name of the part; a server computes a part when it is asked for it. */
export interface Summary {
  /** `of_device`: shortest, median and longest as the device works for them, where the host of the marks runs ahead. */
  steps: { count: number; mean_ns: number; p50_ns: number; shortest_ns: number; longest_ns: number; inferred: boolean; of_device: number[] };
  split: Part[];
  phases: Part[];
  perStep: { name: string; values: number[] }[];
  perPhase: { name: string; values: number[] }[];
  stepNumbers: number[];
  /** Of some steps, which part takes most of each piece of time: pairs of a part and how many pieces follow each other. */
  stepLines: { parts: string[]; piece: number; pieces: number; lines: { step: number; runs: [part: number, pieces: number][] }[] } | null;
  operators: Entry[];
  kernels: Entry[];
  memoryPeak: { device: string; allocated: number | null; reserved: number | null }[];
  dataWait: { total_ns: number; exposed_ns: number; count: number };
  run: RunSteps;
}

export interface Findings {
  verdict: string;
  findings: Finding[];
}

export interface FlameTree {
  flame: FlameNode | null;
  /** Device work below what launched it; its times are those of the device. */
  launched: FlameNode | null;
  /** The sampled Python stacks of the whole run, with names of their own; a call is a sample. */
  sampled: { root: FlameNode; names: string[] } | null;
}

export interface Content extends Frame, Partial<Summary>, Partial<Findings>, Partial<FlameTree> {
  totalsCompared: boolean;
  /** Whether the run is too large for all of it to be in a file: then its spans are those of its typical steps. */
  cut?: boolean;
  names: string[];
  timeline: Timeline | null;
  provenance: [string, string][];
}

export type PartName = "summary" | "findings" | "flame" | "pages";

export interface StepChange {
  a_ns: number;
  b_ns: number;
  change: number;
  runs: [number, number];
  verdict: string;
  low: number | null;
  high: number | null;
  spread: number | null;
}

export interface PartChange {
  name: string;
  name_a: string;
  name_b: string;
  phase: string;
  module: string;
  calls_a: number;
  calls_b: number;
  a_ns: number;
  b_ns: number;
  change_ns: number;
  low_ns: number;
  high_ns: number;
  sure: boolean;
}

/** `comparison` is the JSON of docs/compare.md. */
export interface Compared extends Frame {
  verdict: string;
  sides: [string, string];
  promise: string;
  comparison: {
    verdict: string;
    level: StepChange | null;
    mean: StepChange | null;
    common: { change: number | null };
    notes: string[];
    gates: { rule: string; outcome: string; why: string }[];
    machine: { delay: [number | null, number | null] };
    levels: [{ quantiles_ns: number[] }[], { quantiles_ns: number[] }[]];
    operators: PartChange[];
    only_a: PartChange[];
    only_b: PartChange[];
    counts: { name: string; phase: string; a: number; b: number; varies: boolean }[];
    phases: { name: string; a_ns: number | null; b_ns: number | null; change_ns: number | null }[];
    shapes: { name: string; a: string[]; b: string[] }[];
    memory: { device: string; what: string; a: number | null; b: number | null; varies: boolean }[];
    compilations: [number | null, number | null];
  };
}

/** A run in the list of a directory of runs, the newest first; unknown is null or missing. */
export interface Listed {
  name: string;
  ranks: number;
  status?: string | null;
  steps?: number | null;
  host?: string | null;
}
