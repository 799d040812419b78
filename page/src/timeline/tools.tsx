// The line above the lanes: search, filter, overlays, and the ways to other windows.

import { useEffect, useState } from "preact/hooks";
import { count, duration, shown } from "../format";
import { go, said } from "../state";
import type { Api, Selected } from "./api";
import type { Found } from "./query";
import type { Rows } from "./rows";
import type { Range, Window } from "./window";

export type Overlay = "idle" | "path" | "arrows";

interface Given {
  api: Api;
  time: Window;
  rows: Rows;
  query: string;
  setQuery: (text: string) => void;
  found: Found & { problem: string };
  selected: Selected | null;
  select: (span: Selected | null, show?: boolean) => void;
  over: Set<string>;
  toggle: (what: Overlay) => void;
  setProblem: (text: string) => void;
  /** Whether the keys act on this timeline; of two side by side, on one of them. */
  active: boolean;
}

const LEFT_OUT = "left out of this file, for the run is large: `stepscope view` shows it";

export function Tools({ api, time, rows, over, toggle, setProblem, active, ...search }: Given) {
  const { of, ranks } = api;
  const { a, b, move } = time;
  const job = of.ranks.length > 1;
  const bare = of.ranks.every((row) => row.absent || row.read?.withoutOverlays);
  const left = ranks.known.size < of.ranks.length ? `${count(ranks.known.size)} of ${count(of.ranks.length)} ranks read` : "";
  return (
    <div class="tools">
      <Search api={api} active={active} {...search} />
      <input id={active ? "filter" : undefined!} type="search" placeholder={job ? "filter ranks, lanes" : "filter lanes"} aria-label="filter lanes" value={rows.filter} onInput={(event) => rows.setFilter(event.currentTarget.value)} />
      <Zooms time={time} />
      {of.spans < of.of && <span class="muted">this file holds {count(of.spans)} of {count(of.of)} spans</span>}
      {rows.hidden > 0 && <button onClick={() => rows.showHidden()} title="U">show {count(rows.hidden)} hidden</button>}
      <span class="muted rest" title={left}>{left}</span>
      <button aria-pressed={over.has("path")} disabled={bare} onClick={() => toggle("path")} title={bare ? LEFT_OUT : "C"}>critical path</button>
      <button aria-pressed={over.has("idle")} disabled={bare} onClick={() => toggle("idle")} title={bare ? LEFT_OUT : "E"}>idle</button>
      <button aria-pressed={over.has("arrows")} onClick={() => toggle("arrows")} title="V">arrows</button>
      <button onClick={() => move(...time.focus, true)}>median step</button>
      {time.slowest && <button onClick={() => move(...time.slowest!, true)}>slowest step</button>}
      <button onClick={() => move(...time.all, true)}>everything</button>
      {api.source.live && <Perfetto api={api} ranks={rows.here} a={a} b={b} setProblem={setProblem} />}
    </div>
  );
}

/** How long a window stands still before it is one to go back to, ms; the part of it that is a zoom into it, or all. */
const [STILL, ZOOMED, NEARLY] = [400, 0.5, 0.95];

/** The windows around this one, from the whole run on: each that was zoomed into leads back. */
function Zooms({ time: { a, b, all, move } }: { time: Window }) {
  const [passed, setPassed] = useState<Range[]>([]);
  const around = passed.filter(([from, to]) => from <= a && b <= to && (b - a) <= ZOOMED * (to - from));
  useEffect(() => {
    const timer = setTimeout(() => setPassed([...around, [a, b]]), STILL);
    return () => clearTimeout(timer);
  }, [a, b]);
  const shownWindows = [all, ...around.filter(([from, to]) => to - from <= ZOOMED * (all[1] - all[0])).slice(-4)].filter(([from, to]) => b - a < NEARLY * (to - from));
  return (
    <span class="zooms muted" role="group" aria-label="zooms">
      {shownWindows.map(([from, to]) => <span key={`${from},${to}`}><button class="quiet inline" onClick={() => move(from, to, true)}>{duration(to - from)}</button> › </span>)}
      <b>{duration(b - a)}</b>
    </span>
  );
}

type OfSearch = Pick<Given, "api" | "query" | "setQuery" | "found" | "selected" | "select" | "active">;

function Search({ api, query, setQuery, found, selected, select, active }: OfSearch) {
  const [number, setNumber] = useState<number | null>(null);
  useEffect(() => {
    let current = true;
    setNumber(null);
    if (found.codes.length) void api.count(found).then((value) => current && setNumber(value));
    return () => void (current = false);
  }, [api, found]);
  const next = (back: boolean): void => void api.find(found, selected, back).then((span) => span && select(span, true));
  const read = api.ranks.known.size;
  return (
    <>
      <input id={active ? "search" : undefined!} type="search" placeholder="search  ( / )" title="words of the name, kind:kernel, lane:&quot;stream 7&quot;, module:layer1, dur>1ms, or /a regular expression/" aria-label="search the whole run" value={query}
        onInput={(event) => { setQuery(event.currentTarget.value); go({ q: event.currentTarget.value }); }}
        onKeyDown={(event) => { if (event.key === "Enter") next(event.shiftKey); }} />
      {query && <span class="muted">{found.codes.length ? `${number === null ? "…" : count(number)} ${number === 1 ? "span" : "spans"} of ${count(found.codes.length)} ${found.codes.length === 1 ? "name" : "names"}` : found.problem ? shown(found.problem, 60) : "no name matches"}{read < api.of.ranks.length ? `, in the ${count(read)} ranks that are read` : ""}</span>}
    </>
  );
}

/** The window as a file for ui.perfetto.dev. */
function Perfetto({ api, ranks, a, b, setProblem }: { api: Api; ranks: number[]; a: number; b: number; setProblem: (text: string) => void }) {
  const [busy, setBusy] = useState(false);
  const save = async (): Promise<void> => {
    setBusy(true);
    try {
      const url = URL.createObjectURL(await api.perfetto(ranks.filter((rank) => api.ranks.known.has(rank)), a, b));
      const anchor = document.createElement("a");
      anchor.href = url;
      anchor.download = "window.pftrace";
      anchor.click();
      setTimeout(() => URL.revokeObjectURL(url), 10_000);
      said.value = "saved window.pftrace";
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
    } finally {
      setBusy(false);
    }
  };
  return <button disabled={busy} onClick={() => void save()} title="saves window.pftrace: open it at ui.perfetto.dev">Perfetto</button>;
}
