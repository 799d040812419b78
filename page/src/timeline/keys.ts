// The keys of the timeline. They go by the place of a key, so that any layout of a keyboard will do.

import { useLayoutEffect } from "preact/hooks";
import { copy } from "../state";
import type { Api, Which } from "./api";
import type { Rows } from "./rows";
import type { Selection } from "./selection";
import type { Overlay } from "./tools";
import type { Range, Window } from "./window";

interface Keys {
  api: Api;
  time: Window;
  rows: Rows;
  selection: Selection;
  range: Range | null;
  setRange: (range: Range | null) => void;
  mark: (range?: Range | null) => void;
  toggle: (what: Overlay) => void;
  active: boolean;
}

/** Listen to the keys, except where they are typed into a field, or move in the details. */
export function useKeys(of: Keys): void {
  // With the picture, not behind it: a key that follows another at once meets what that one did.
  useLayoutEffect(() => {
    if (!of.active) return undefined;
    const key = (event: KeyboardEvent): void => {
      const target = event.target as HTMLElement | null;
      const inTable = target?.closest(".details, nav, header, .ruler") && event.code.startsWith("Arrow");
      if (target && !inTable && !/^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)) pressed(event, of);
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  });
}

function pressed(event: KeyboardEvent, of: Keys): void {
  const { facts } = of.selection;
  if ((event.ctrlKey || event.metaKey) && event.code === "KeyC" && facts && !getSelection()?.toString())
    return void copy([["name", of.api.name(facts.span.name)], ...facts.facts].map((fact) => fact.join("\t")).join("\n"), "span copied");
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { a, b, move } = of.time;
  const { rows, range, setRange } = of;
  const { selected, select, follow, chain } = of.selection;
  const track = rows.trackOf(selected);
  const size = b - a;
  const by = size * (event.shiftKey ? 1 : 0.2);
  const near = (which: Which): void => void (selected && of.api.neighbour(selected, which).then((span) => span && select(span, true)));
  const page = (way: number): void => rows.scrollTo(rows.top + way * rows.height * 0.9);
  const everything = (): void => move(...of.time.all, true);
  const act: Record<string, () => void> = {
    KeyA: () => move(a - by, b - by), ArrowLeft: () => move(a - by, b - by),
    KeyD: () => move(a + by, b + by), ArrowRight: () => move(a + by, b + by),
    KeyW: () => move(a + size * 0.15, b - size * 0.15), KeyS: () => move(a - size * 0.25, b + size * 0.25),
    KeyZ: () => range && move(range[0], range[1], true),
    KeyF: () => selected && move(selected.start - selected.dur * 0.1, selected.start + selected.dur * 1.1, true),
    Digit0: everything, Home: everything,
    KeyM: () => (event.shiftKey ? range && of.mark(range) : selected && setRange([selected.start, selected.start + selected.dur])),
    KeyI: () => selected && setRange([selected.start, Math.max(range?.[1] ?? 0, selected.start + selected.dur)]),
    KeyO: () => selected && setRange([Math.min(range?.[0] ?? Infinity, selected.start), selected.start + selected.dur]),
    Period: () => near("next"), Comma: () => near("previous"), ArrowUp: () => near("parent"), ArrowDown: () => near("child"),
    KeyN: () => near(event.shiftKey ? "same-back" : "same"),
    KeyP: () => track && rows.pin(track),
    KeyH: () => track && rows.hide(track), KeyU: () => rows.showHidden(),
    KeyT: () => track && rows.fold({ rank: track.rank, track }), KeyL: () => document.getElementById("filter")?.focus(),
    BracketRight: () => (event.shiftKey ? chain() : follow(true)), BracketLeft: () => follow(false),
    KeyC: () => of.toggle("path"), KeyE: () => of.toggle("idle"), KeyV: () => of.toggle("arrows"),
    KeyK: () => (event.shiftKey ? document.querySelector<HTMLElement>(".marks button")?.focus() : of.mark()), KeyY: () => void copy(location.href, "link copied"),
    PageDown: () => page(1), PageUp: () => page(-1),
    Slash: () => document.getElementById("search")?.focus(),
    Escape: () => (range ? setRange(null) : select(null)),
  };
  const found = act[event.code];
  if (!found) return;
  event.preventDefault();
  found();
}
