// Charts in SVG: stacked bars, a line over the run, both with their numbers as text for whoever cannot see them.

import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { partColour } from "./colours";
import { duration, percent } from "./format";
import { theme } from "./state";

/** The width of an element's contents in pixels, so that text in a chart is as large as elsewhere, and its height stays. */
export function useWidth<Of extends Element>(): [{ current: Of | null }, number] {
  const box = useRef<Of>(null);
  const [width, setWidth] = useState(600);
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    const measure = (): void => setWidth(Math.max(200, Math.round(element.getBoundingClientRect().width)));
    measure();
    const watch = new ResizeObserver(measure);
    watch.observe(element);
    return () => watch.disconnect();
  }, []);
  return [box, width];
}

export interface Stack {
  name: string;
  values: number[];
}

/** Steps as stacked columns, ns; a click opens a step. */
export function Stacks({ label, numbers, parts, onStep }: { label: string; numbers: number[]; parts: Stack[]; onStep?: (index: number) => void }) {
  const [over, setOver] = useState(-1);
  const shownParts = parts.filter((part) => part.values.some((value) => value > 0));
  const totals = numbers.map((_, i) => parts.reduce((sum, part) => sum + (part.values[i] ?? 0), 0));
  const most = Math.max(1, ...totals);
  const [box, wide] = useWidth<SVGSVGElement>();
  const width = wide - 60;
  const height = 150;
  const slot = Math.min(90, width / Math.max(1, numbers.length));
  const gap = slot > 6 ? Math.min(8, slot * 0.2) : 0;
  const at = over >= 0 ? over : -1;
  return (
    <figure class="chart">
      <svg ref={box} viewBox={`0 0 ${wide} ${height + 22}`} height={height + 22} role="img" aria-label={`${label}: ${numbers.length} steps, longest ${duration(most)}`} onMouseLeave={() => setOver(-1)}>
        {[0, 0.5, 1].map((share) => (
          <g key={share}>
            <line x1={52} x2={width + 52} y1={6 + height * (1 - share)} y2={6 + height * (1 - share)} class="grid" />
            <text x={48} y={10 + height * (1 - share)} text-anchor="end">{share ? duration(most * share) : "0"}</text>
          </g>
        ))}
        {numbers.map((number, i) => {
          let y = 6 + height;
          return (
            <g key={i} onMouseEnter={() => setOver(i)} onClick={() => onStep?.(i)} class={onStep ? "link" : ""}>
              <rect x={52 + i * slot} y={6} width={slot} height={height} fill={at === i ? "var(--hover)" : "transparent"} />
              {shownParts.map((part) => {
                const tall = (height * (part.values[i] ?? 0)) / most;
                y -= tall;
                return <rect key={part.name} x={52 + i * slot + gap / 2} y={y} width={Math.max(0.6, slot - gap)} height={tall} fill={partColour(part.name, theme.value)} />;
              })}
              {(numbers.length <= 16 || i % Math.ceil(numbers.length / 12) === 0) && <text x={52 + (i + 0.5) * slot} y={height + 19} text-anchor="middle">{number}</text>}
            </g>
          );
        })}
      </svg>
      <figcaption>{shownParts.map((part) => {
        const sum = part.values.reduce((a, b) => a + b, 0);
        const whole = totals.reduce((a, b) => a + b, 0);
        const mean = at >= 0 ? part.values[at] ?? 0 : sum / Math.max(1, numbers.length);
        return <span key={part.name}><i style={{ background: partColour(part.name, theme.value) }} />{part.name} {duration(mean)}{at < 0 ? ` · ${percent(sum / Math.max(1, whole))}` : ""}</span>;
      })}{at >= 0 && <span class="muted">step {numbers[at]}: {duration(totals[at])}</span>}</figcaption>
    </figure>
  );
}

export interface Line {
  name: string;
  x: number[];
  y: (number | null)[];
  colour?: string;
  dashed?: boolean;
}

const COLOURS = ["computing", "copy", "data wait", "communication", "other", "sync", "checkpoint", "host only"];
const lineColour = (line: Line, i: number): string => line.colour ?? partColour(COLOURS[i % COLOURS.length]!, theme.value);

/** Few points of more than so many times the 90th percentile would flatten all others: they are drawn at the edge. */
const [FAR, EDGE] = [3, 1.5];

/** The height of the chart, and how many points lie above it; only with `cut` any do. */
function reach(lines: Line[], cut: boolean): { most: number; top: number; above: number } {
  const all = lines.flatMap((line) => line.y.filter((y) => y !== null)).sort((a, b) => a - b);
  const most = Math.max(1e-9, all[all.length - 1] ?? 0);
  const high = all[Math.floor(0.9 * all.length)] ?? most;
  const top = cut && most > FAR * high && high > 0 ? EDGE * high : most;
  return { most, top, above: all.filter((y) => y > top).length };
}

/** Lines over the run; of more points than pixels, the least and the most of each pixel. */
export function Lines({ label, lines, format, marks = [], cut = false, x = (value) => String(value) }: { label: string; lines: Line[]; format: (y: number) => string; marks?: { x: number; text: string }[]; cut?: boolean; x?: (value: number) => string }) {
  const [over, setOver] = useState<number | null>(null);
  const [frame, wide] = useWidth<SVGSVGElement>();
  const width = wide - 74;
  const height = 140;
  const every = lines.flatMap((line) => [line.x[0] ?? 0, line.x[line.x.length - 1] ?? 0]);
  const low = Math.min(...every);
  const high = Math.max(...every, low + 1);
  const { most, top, above } = useMemo(() => reach(lines, cut), [lines, cut]);
  const px = (value: number): number => 62 + (width * (value - low)) / (high - low);
  const py = (value: number): number => 6 + height * (1 - Math.min(value, top) / top);
  const nearest = (line: Line): number => {
    let best = 0;
    if (over !== null) line.x.forEach((value, i) => { if (Math.abs(value - over) < Math.abs(line.x[best]! - over)) best = i; });
    return best;
  };
  return (
    <figure class="chart">
      <svg ref={frame} viewBox={`0 0 ${wide} ${height + 22}`} height={height + 22} role="img" aria-label={`${label}; most ${format(most)}`}
        onMouseMove={(event) => { const box = event.currentTarget.getBoundingClientRect(); setOver(low + ((high - low) * (event.clientX - box.left - 62)) / width); }} onMouseLeave={() => setOver(null)}>
        {[0, 0.5, 1].map((share) => (
          <g key={share}>
            <line x1={62} x2={width + 62} y1={py(top * share)} y2={py(top * share)} class="grid" />
            <text x={58} y={py(top * share) + 4} text-anchor="end">{share ? format(top * share) : "0"}</text>
          </g>
        ))}
        {lines.map((line, i) => <path key={line.name} d={path(line, px, py, width)} fill="none" stroke={lineColour(line, i)} stroke-width="1.5" stroke-dasharray={line.dashed ? "5 3" : undefined} />)}
        {marks.map((mark, i) => <g key={i}><line x1={px(mark.x)} x2={px(mark.x)} y1={6} y2={6 + height} class="mark" /><title>{mark.text}</title></g>)}
        {over !== null && <line x1={px(over)} x2={px(over)} y1={6} y2={6 + height} class="cursor" />}
        <text x={62} y={height + 19}>{x(low)}</text>
        <text x={62 + width} y={height + 19} text-anchor="end">{x(high)}</text>
      </svg>
      <figcaption>{lines.map((line, i) => <span key={line.name}><i style={{ background: lineColour(line, i) }} />{line.name}{over !== null ? ` ${line.y[nearest(line)] === null ? "–" : format(line.y[nearest(line)]!)} at ${x(line.x[nearest(line)]!)}` : ""}</span>)}{above > 0 && <span class="muted">{above} drawn at the edge, up to {format(most)}</span>}</figcaption>
    </figure>
  );
}

function path(line: Line, px: (x: number) => number, py: (y: number) => number, width: number): string {
  const size = Math.max(1, Math.ceil(line.x.length / width / 2));
  let text = "";
  let pen = "M";
  for (let i = 0; i < line.x.length; i += size) {
    let least: number | null = null;
    let most: number | null = null;
    for (let j = i; j < Math.min(i + size, line.x.length); j++) {
      const y = line.y[j];
      if (y === null || y === undefined) continue;
      least = least === null ? y : Math.min(least, y);
      most = most === null ? y : Math.max(most, y);
    }
    if (least === null || most === null) { pen = "M"; continue; }
    const x = px(line.x[i]!).toFixed(1);
    text += `${pen}${x} ${py(most).toFixed(1)}`;
    if (least !== most) text += `L${x} ${py(least).toFixed(1)}`;
    pen = "L";
  }
  return text;
}
