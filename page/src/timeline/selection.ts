// The selected span: what is known of it, the span that is measured from it, and its part of the link.

import { useEffect, useState } from "preact/hooks";
import { duration, shown } from "../format";
import { go, link, said } from "../state";
import type { Api, Facts, Selected } from "./api";
import type { Rows } from "./rows";
import type { Window } from "./window";

export interface Selection {
  selected: Selected | null;
  facts: Facts | null;
  measured: Selected | null;
  /** Select a span, or none; with `show`, window and rows move to it. */
  select: (span: Selected | null, show?: boolean) => void;
  measure: (span: Selected | null) => void;
  follow: (leaves: boolean) => void;
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
  return { selected, facts: known, measured, select, measure, follow };
}
