// Where the data come from: the file that holds the page, or the server that gave it.

import type { Compared, Content, Listed, PartName, Result } from "./model";

/** The spans of a file, rank after rank, by their own times; and its arrows, by the places of the spans at their ends. */
export interface Columns {
  lane: Uint32Array;
  start: Float64Array;
  dur: Float64Array;
  name: Uint32Array;
  kind: Uint8Array;
  row: Float64Array;
  /** 1 + the number of its module; 0 if none is known. */
  module: Uint32Array;
  begin: Float64Array;
  end: Float64Array;
  arrow: Uint8Array;
}

export interface Source {
  readonly live: boolean;
  readonly token: string;
  /** Where the server answers, from the page's address on: of several runs, below the number of each. */
  readonly base: string;
  /** The content of a rank, or of a comparison; of a directory of runs, the list of them. */
  content(rank?: number): Promise<Content | Compared | { runs: Listed[] }>;
  result(rank: number, name: string): Promise<Result>;
  /** A part of the content of a rank, which takes long. */
  part(rank: number, name: PartName): Promise<Partial<Content>>;
  /** The content of a run as it is now, that is being recorded. */
  again(): Promise<Content>;
  /** How many bytes its captures have now. */
  grown(): Promise<number>;
  /** The spans that a file holds; null of a server, which is asked for pictures. */
  readonly columns: Columns | null;
}

interface Head extends Content {
  columns: [name: string, width: number, bytes: number][];
}

/** The element of one file that holds its data, as base64 of one gzip stream. */
export async function fromFile(element: HTMLElement): Promise<Source> {
  const text = element.textContent ?? "";
  const packed = Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));
  element.remove();
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const all = await new Response(stream).arrayBuffer();
  const size = new DataView(all).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(all, 4, size))) as Head;
  const columns = head.timeline ? unpack(all, 4 + size, head) : null;
  return {
    live: false,
    token: "",
    base: "",
    columns,
    content: async () => head,
    part: async () => head,
    again: async () => head,
    grown: async () => 0,
    result: async (_, name) => {
      const found = head.results[name];
      if (!found) throw new Error(`This file does not hold ${name}.`);
      return found;
    },
  };
}

/** Columns as bytes of equal weight together; starts and rows as differences. */
function unpack(all: ArrayBuffer, offset: number, head: Head): Columns {
  const found = new Map<string, Float64Array>();
  for (const [name, width, length] of head.columns) {
    const number = length / width;
    const source = new Uint8Array(all, offset, length);
    const column = new Float64Array(number);
    for (let byte = 0, weight = 1; byte < width; byte++, weight *= 256) {
      const from = byte * number;
      for (let i = 0; i < number; i++) column[i]! += source[from + i]! * weight;
    }
    found.set(name, column);
    offset += length;
  }
  const column = (name: string): Float64Array => found.get(name) ?? new Float64Array(0);
  const summed = (values: Float64Array, lanes: Float64Array | null): Float64Array => {
    for (let i = 1; i < values.length; i++) if (!lanes || lanes[i] === lanes[i - 1]) values[i]! += values[i - 1]!;
    return values;
  };
  const lanes = column("lane");
  return {
    lane: Uint32Array.from(lanes),
    start: summed(column("start"), lanes),
    dur: column("dur"),
    name: Uint32Array.from(column("name")),
    kind: Uint8Array.from(column("kind")),
    row: column("row"),
    module: Uint32Array.from(column("module")),
    begin: summed(column("begin"), null),
    end: column("end"),
    arrow: Uint8Array.from(column("arrow")),
  };
}

/** The local server; its token came in the link, and leaves the address bar. */
export function fromServer(base = ""): Source {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem("token", given);
    const rest = new URLSearchParams(location.hash.slice(1));
    rest.delete("token");
    history.replaceState(null, "", `${location.pathname}#${rest}`);
  }
  const token = sessionStorage.getItem("token") ?? "";
  const ask = async (path: string, body?: unknown): Promise<Response> => {
    const answer = await fetch(`${base}api/${path}`, {
      method: body === undefined ? "GET" : "POST",
      headers: { "X-Stepscope-Token": token, ...(body === undefined ? {} : { "Content-Type": "application/json" }) },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    if (!answer.ok) throw new Error(await answer.text());
    return answer;
  };
  return {
    live: true,
    token,
    base,
    columns: null,
    content: async (rank) => (await (await ask(`content${rank === undefined ? "" : `?rank=${rank}`}`)).json()) as Content | { runs: Listed[] },
    part: async (rank, name) => (await (await ask("part", { rank, name })).json()) as Partial<Content>,
    again: async () => (await (await ask("again", {})).json()) as Content,
    grown: async () => (await (await ask("grown", {})).json()) as number,
    result: async (rank, name) => (await (await ask("result", { rank, name })).json()) as Result,
  };
}
