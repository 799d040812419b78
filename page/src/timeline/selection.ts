// The selected span: what is known of it, the span that is measured from it, and its part of the link.

import { useEffect, useState } from "preact/hooks";
import { count, duration, shown } from "../format";
import { go, link, said } from "../state";
import { type Api, type Chained, type Facts, MOST_FLOWS, type Selected } from "./api";
import type { Rows } from "./rows";
import type { Window } from "./window";

export interface Selection {
  selected: Selected | null;
  facts: Facts | null;
  measured: Selected | null;
  /** The arrows to draw: those of the span, or its whole chain. */
  arrows: Chained[];
  /** Whether that is the chain. */
  chained: boolean;
  /** Select a span, or none; with `show`, window and rows move to it. */
  select: (span: Selected | null, show?: boolean) => void;
  measure: (span: Selected | null) => void;
  follow: (leaves: boolean) => void;
  /** Draw the chain, or the arrows of the span alone again. */
  chain: () => void;
}

interface Around {
  time: Window;
  rows: Rows;
  /** A rank was read on the way. */
  told: (rank: number) => void;
  setProblem: (text: string) => void;
  /** Its part of the link. */
  part: string;
}

export function useSelection(api: Api, { time, rows, told, setProblem, part }: Around): Selection {
  const [selected, setSelected] = useState<Selected | null>(null);
  const [facts, setFacts] = useState<Facts | null>(null);
  // Facts of the span that was selected before are not shown beside this one.
  const known = facts && facts.span.rank === selected?.rank && facts.span.place === selected.place ? facts : null;
  const [measured, setMeasured] = useState<Selected | null>(null);
  const [chained, setChained] = useState<Chained[] | null>(null);

  useEffect(() => {
    const [rank, place] = (link.peek()[part] ?? "").split(":").map(Number);
    if (rank === undefined || place === undefined || !api.of.ranks.some((row) => row.rank === rank)) return;
    void api.span(rank, place).then((one) => {
      if (!one) return;
      if (!rows.tracks.has(rank)) told(rank);
      setSelected(one.span);
      rows.scrollToLane(one.span.lane);
    }, (error: unknown) => setProblem(String(error)));
  }, [api]);

  useEffect(() => {
    let current = true;
    setFacts(null);
    setMeasured(null);
    setChained(null);
    if (selected) void api.span(selected.rank, selected.place).then((one) => current && setFacts(one));
    return () => void (current = false);
  }, [api, selected?.rank, selected?.place]);

  const select = (span: Selected | null, show = false): void => {
    setSelected(span);
    go({ [part]: span ? `${span.rank}:${span.place}` : null });
    if (!span) return;
    said.value = `${shown(api.name(span.name), 80)}, ${duration(span.dur)}`;
    if (!show) return;
    const { a, b, move } = time;
    if (span.start + span.dur < a || span.start > b) {
      const half = Math.max((b - a) / 2, span.dur);
      move(span.start + span.dur / 2 - half, span.start + span.dur / 2 + half, true);
    }
    rows.reveal(span);
  };
  const measure = (span: Selected | null): void => (selected && span ? setMeasured(span) : select(span));
  const follow = (leaves: boolean): void => select(known?.flows.find((arrow) => arrow.leaves === leaves)?.span ?? known?.flows[0]?.span ?? selected, true);
  const chain = (): void => {
    if (!selected || chained) return setChained(null);
    void api.chain(selected).then((arrows) => {
      setChained(arrows);
      said.value = arrows.length ? chainText(arrows) : "no arrow leaves or reaches this span";
    }, (error: unknown) => setProblem(String(error)));
  };
  const own = (known?.flows ?? []).map(({ kind, leaves, span }) => (leaves ? { kind, from: known!.span, to: span } : { kind, from: span, to: known!.span }));
  return { selected, facts: known, measured, arrows: chained ?? own, chained: chained !== null, select, measure, follow, chain };
}

/** What a chain consists of, in words. */
export function chainText(arrows: Chained[]): string {
  const spans = new Map(arrows.flatMap(({ from, to }) => [from, to]).map((span) => [`${span.rank}:${span.place}`, span]));
  const [first, last] = [...spans.values()].reduce(([a, b], { start, dur }) => [Math.min(a, start), Math.max(b, start + dur)], [Infinity, -Infinity]);
  return `${arrows.length >= MOST_FLOWS ? "the nearest " : ""}${count(arrows.length)} ${arrows.length === 1 ? "arrow" : "arrows"} between ${count(spans.size)} spans, ${duration(last - first)} from the first to the end of the last`;
}
