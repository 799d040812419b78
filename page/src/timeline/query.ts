// What a search looks for: words or a regular expression in the names of spans, their kinds and lanes, how long they take.

import { compiled } from "./expression";

/**
 * The spans that a search finds: by their names, kinds (any if none), lanes (any if null), least and most duration, ns, and
 * a text in the name of their module. `bits` are theirs, a bit for each place of a rank, where a module is asked for.
 */
export interface Found {
  codes: number[];
  kinds: number[];
  lanes: number[] | null;
  least: number;
  most: number;
  module: string;
  bits: Map<number, Uint8Array> | null;
}

export interface Query {
  name: (text: string) => boolean;
  kinds: string[];
  lane: string;
  least: number;
  most: number;
  module: string;
  /** Why it cannot be understood. */
  problem: string;
}

const TERMS = /(?:^|(?<=\s))(?:(kind|lane|module):(?:"([^"]*)"|(\S+))|dur([<>])([\d.]+)(ns|us|µs|ms|s)|\/(.+)\/)(?=\s|$)/g;
const UNITS: Record<string, number> = { ns: 1, us: 1e3, µs: 1e3, ms: 1e6, s: 1e9 };
/** Characters of a name that a regular expression sees: names have no end. */
const SEEN = 300;

/** Read a search such as `gemm kind:kernel lane:"stream 7" module:layer1 dur>1ms`, or `/gemm_\d+/`. */
export function parsed(text: string): Query {
  const found: Query = { name: () => true, kinds: [], lane: "", least: 0, most: Number.MAX_SAFE_INTEGER, module: "", problem: "" };
  let matches: ((text: string) => boolean) | null = null;
  const rest = text.replace(TERMS, (_, what?: string, quoted?: string, plain?: string, way?: string, number?: string, unit?: string, expression?: string) => {
    if (what === "kind") found.kinds.push((quoted ?? plain ?? "").toLowerCase());
    else if (what) found[what as "lane" | "module"] = (quoted ?? plain ?? "").toLowerCase();
    else if (way) found[way === ">" ? "least" : "most"] = Number(number) * UNITS[unit!]!;
    else if (expression) {
      try {
        matches = compiled(expression);
      } catch (error) {
        found.problem = `not a regular expression: ${(error as Error).message}`;
      }
    }
    return "";
  });
  const words = rest.toLowerCase().split(/\s+/).filter(Boolean);
  found.name = (name) => {
    const low = name.toLowerCase();
    return words.every((word) => low.includes(word)) && (!matches || matches(name.slice(0, SEEN)));
  };
  return found;
}

/** Whether a search finds a span of these names, whatever its module; an unknown duration may be any. */
export function finder(found: Found): (name: number, kind: number, lane: number, dur: number | null) => boolean {
  const [codes, kinds, lanes] = [new Set(found.codes), new Set(found.kinds), found.lanes && new Set(found.lanes)];
  return (name, kind, lane, dur) => codes.has(name) && (!kinds.size || kinds.has(kind)) && (!lanes || lanes.has(lane)) && (dur === null || (dur >= found.least && dur <= found.most));
}

/** Whether the module of a span of a rank is the one that is asked for; until the bits are there, any is. */
export function ofModule(found: Found): (rank: number, place: number) => boolean {
  return (rank, place) => !found.bits || ((found.bits.get(rank)?.[place >> 3] ?? 0) & (1 << (place & 7))) !== 0;
}
