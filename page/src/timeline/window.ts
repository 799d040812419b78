// The window of time that is shown: where it lies, and how the mouse moves it.

import { useLayoutEffect, useRef } from "preact/hooks";
import type { Timeline as Times } from "../model";
import { go, link } from "../state";
import type { Selected } from "./api";

export type Range = [from: number, to: number];

/** The window in ns of the run's timeline. `move` keeps it inside the run; with `step` the browser's history has the one before. */
export interface Window {
  a: number;
  b: number;
  move: (from: number, to: number, step?: boolean) => void;
  /** The median step, and all that there is. */
  focus: Range;
  all: Range;
  /** The slowest of several steps of one run. */
  slowest: Range | null;
  /** What the link counts from, and the ruler. */
  at: number;
}

/**
 * One of two runs side by side, which have one window: the link counts from the start of a step of each, `at`. Times are
 * those of this run, those before it and after it in the other included.
 */
export interface Side {
  place: number;
  at: number;
  all: Range;
  focus: Range;
  active: boolean;
}

/** The least window, ns. */
const LEAST = 20;

export function useWindow(of: Times, side: Side | null): Window {
  const { at, all, focus } = side ?? { at: 0, all: [of.begin, of.end] as Range, focus: of.focus };
  const [from, to] = (link.value["t"] ?? "").split(",").map(Number);
  const [a, b] = from !== undefined && to !== undefined && Number.isFinite(from) && Number.isFinite(to) && to > from ? [from + at, to + at] : focus;
  const move = (begin: number, end: number, step = false): void => {
    const size = Math.max(LEAST, Math.min(end - begin, all[1] - all[0]));
    const left = Math.max(all[0], Math.min(begin, all[1] - size));
    go({ t: `${Math.round(left - at)},${Math.round(left + size - at)}` }, step);
  };
  return { a, b, move, focus, all, at, slowest: side ? null : slowestOf(of) };
}

function slowestOf({ steps }: Times): Range | null {
  if (steps.length < 2) return null;
  const step = steps.reduce((most, one) => (one.dur > most.dur ? one : most));
  return [step.start, step.start + step.dur];
}

/** The wheel: scrolls the lanes; with Ctrl it zooms at the pointer, with Shift or sideways it pans. */
export function useWheel(element: { current: HTMLElement | null }, { a, b, move }: Window, width: number, scroll: (by: number) => void): void {
  // With the picture, as the keys: several turns of the wheel come before it is drawn.
  useLayoutEffect(() => {
    const turned = (event: WheelEvent): void => {
      event.preventDefault();
      const x = (event.offsetX / width) * (b - a);
      if (event.ctrlKey || event.metaKey) {
        const factor = Math.exp(event.deltaY * 0.002);
        move(a + x - x * factor, a + x + (b - a - x) * factor);
      } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        const by = ((event.deltaX || event.deltaY) / width) * (b - a);
        move(a + by, b + by);
      } else scroll(event.deltaY);
    };
    const box = element.current;
    box?.addEventListener("wheel", turned, { passive: false });
    return () => box?.removeEventListener("wheel", turned);
  });
}

interface Drag {
  width: number;
  setRange: (range: Range | null) => void;
  /** Do something with the span at a place, once it is known which that is. */
  at: (x: number, y: number, act: (span: Selected | null) => void) => void;
  select: (span: Selected | null) => void;
  measure: (span: Selected | null) => void;
  /** The edge of a span near a time, at a height in pixels; else the time. */
  snap: (time: number, y: number) => number;
}

/** The pointer: a click selects, with Shift it measures; a drag selects a range. */
export function useDrag({ a, b }: Window, { width, setRange, at, select, measure, snap }: Drag) {
  const from = useRef<{ x: number; y: number; moved: boolean } | null>(null);
  const place = (event: PointerEvent): [number, number] => {
    const bounds = (event.currentTarget as HTMLElement).getBoundingClientRect();
    return [event.clientX - bounds.left, event.clientY - bounds.top];
  };
  const time = (x: number): number => a + ((b - a) * Math.max(0, Math.min(width, x))) / width;
  return {
    onPointerDown: (event: PointerEvent): void => {
      if (event.button !== 0) return;
      const [x, y] = place(event);
      from.current = { x, y, moved: false };
      (event.currentTarget as HTMLElement).setPointerCapture(event.pointerId);
    },
    onPointerMove: (event: PointerEvent): void => {
      const start = from.current;
      if (!start) return;
      const [x, y] = place(event);
      if (Math.abs(x - start.x) > 4) start.moved = true;
      if (!start.moved) return;
      const ends = event.altKey ? [time(start.x), time(x)] : [snap(time(start.x), start.y), snap(time(x), y)];
      setRange([Math.min(...ends), Math.max(...ends)]);
    },
    onPointerUp: (event: PointerEvent): void => {
      const start = from.current;
      from.current = null;
      if (!start || start.moved) return;
      setRange(null);
      at(...place(event), event.shiftKey ? measure : select);
    },
  };
}
