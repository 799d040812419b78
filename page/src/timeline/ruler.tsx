// Above the lanes: the time, the steps of the rank, and the marks.

import { count, duration } from "../format";
import type { Step } from "../model";

/** A time with all its digits: 224.280 187 ms. */
const exact = (time: number): string => {
  const [whole, part] = [Math.floor(time / 1e6), String(Math.round(time % 1e6)).padStart(6, "0")];
  return `${count(whole)}.${part.slice(0, 3)} ${part.slice(3)} ms`;
};

export function Ruler({ a, b, width, labels, steps, move }: { a: number; b: number; width: number; labels: number; steps: Step[]; move: (a: number, b: number, step?: boolean) => void }) {
  const raw = (b - a) / Math.max(3, width / 120);
  const power = 10 ** Math.floor(Math.log10(raw));
  const size = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= raw) ?? raw;
  const ticks: number[] = [];
  const px = (time: number): number => ((time - a) / (b - a)) * width;
  // A label that has no room before the end is cut: its tick is left out.
  for (let time = Math.ceil(a / size) * size; px(time) < width - 56; time += size) ticks.push(time);
  // Far from the start, three digits no longer tell two ticks apart: then they count from the first of them.
  const base = ticks[0] !== undefined && ticks[0] > 500 * size ? ticks[0] : 0;
  return (
    <div class="ruler" style={{ marginLeft: `${labels}px`, height: steps.length ? "40px" : "20px" }}>
      <div class="ticks">{ticks.map((time) => <span key={time} style={{ left: `${px(time)}px` }}>{base && time !== base ? `+${duration(time - base)}` : base ? exact(time) : duration(time)}</span>)}</div>
      {steps.length > 0 && <div class="steps">{within(steps, a, b, width).map(({ step, left, size: wide }) => (
        <button key={step.number} style={{ left: `${left}px`, width: `${wide}px` }} title={`step ${step.number}: ${duration(step.dur)}`} onClick={() => move(step.start, step.start + step.dur, true)}>step {step.number}</button>
      ))}</div>}
    </div>
  );
}

/** The steps of a window with their places in pixels; none where they are too many to tell apart. */
export function within(steps: Step[], a: number, b: number, width: number): { step: Step; left: number; size: number }[] {
  const px = (time: number): number => ((time - a) / (b - a)) * width;
  const shown = steps.filter((step) => step.start < b && step.start + step.dur > a);
  return (shown.length <= 400 ? shown : []).map((step) => {
    const left = Math.max(0, px(step.start));
    return { step, left, size: Math.max(1, Math.min(width, px(step.start + step.dur)) - left - 1) };
  });
}
