// What takes most time: its share, and how it changes from step to step.

import { useMemo } from "preact/hooks";
import { count, duration, percent, shown } from "../format";
import type { Content, Entry, Page } from "../model";
import { Asked, has } from "../parts";
import { open } from "../state";
import { AllResults } from "./results";

/** What takes most time: a step, as all figures beside it; of a run without steps, in all. */
export function Top({ title, entries, steps, to }: { title: string; entries: Entry[]; steps: number; to: string }) {
  const each = Math.max(1, steps);
  const per = steps ? "a step" : "in all";
  const most = Math.max(...entries.map((entry) => entry.total_ns), 1);
  const trend = entries.some((entry) => entry.trend);
  return (
    <section aria-label={title}>
      <h2>{title} {per} {to && <button class="quiet" onClick={() => open(to)}>all</button>}</h2>
      <table class={`simple top ${trend ? "with-trend" : ""}`.trim()}>
        <thead><tr><th scope="col">name</th><td /><th scope="col" class="number">{per}</th><th scope="col" class="number">share</th><th scope="col" class="number">calls {per}</th>{trend && <th scope="col">step by step</th>}</tr></thead>
        <tbody>{entries.map((entry, i) => (
        <tr key={i}><td class="name" title={shown(entry.name, 2000)}>{shown(entry.name, 90)}</td>
          <td><span class="bar" style={{ width: `${Math.max(1, ((trend ? 48 : 90) * entry.total_ns) / most)}px` }} /></td>
          <td class="number">{duration(entry.total_ns / each)}</td><td class="number">{percent(entry.share)}</td><td class="number">{calls(entry.count / each)}</td>{trend && <td>{entry.trend && <Spark values={entry.trend} />}</td>}</tr>
        ))}</tbody>
      </table>
    </section>
  );
}

/** Calls a step: whole where each step has as many. */
const calls = (number: number): string => (Number.isInteger(number) || number >= 100 ? count(number) : number < 0.005 ? "< 0.01" : number.toFixed(number < 10 ? 2 : 1));

const [WIDTH, HEIGHT] = [72, 16];

/** A line from 0 up: equal steps are flat, whatever their size. Of more steps than pixels, the largest of each pixel. */
function Spark({ values }: { values: number[] }) {
  const least = values.reduce((a, b) => Math.min(a, b), Infinity);
  const most = values.reduce((a, b) => Math.max(a, b), 0);
  const size = Math.ceil(values.length / WIDTH);
  const path = useMemo(() => {
    const points: string[] = [];
    for (let i = 0; i < values.length; i += size) {
      const value = values.slice(i, i + size).reduce((a, b) => Math.max(a, b), 0);
      points.push(`${((WIDTH * i) / Math.max(1, values.length - 1)).toFixed(1)} ${(HEIGHT - 1 - ((HEIGHT - 2) * value) / Math.max(1, most)).toFixed(1)}`);
    }
    return `M${points.join("L")}`;
  }, [values]);
  const text = `${values.length} steps, ${duration(least)} to ${duration(most)}`;
  return <svg class="spark" width={WIDTH} height={HEIGHT} role="img" aria-label={text}><title>{text}</title><path d={path} /></svg>;
}

/** Operators or kernels: those with most time over the steps, then all results of the page. */
export function Work({ content, page }: { content: Content; page: Page }) {
  const kind = page.name === "kernels" ? "kernels" : "operators";
  return (
    <>
      <h1>{page.title}</h1>
      {has(content, "summary") ? content[kind].length > 0 && <Top title={kind === "kernels" ? "By device time" : "By self time on the host"} entries={content[kind]} steps={content.steps.count} to="" /> : <Asked content={content} part="summary">reading the steps …</Asked>}
      <AllResults content={content} page={page} />
    </>
  );
}
