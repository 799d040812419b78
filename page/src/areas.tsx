// Memory over time as areas on top of each other, one for each category.

import { useState } from "preact/hooks";
import { useWidth } from "./charts";
import { categoryColour } from "./colours";
import { theme } from "./state";

export interface Area {
  name: string;
  values: (number | null)[];
}

/** Areas on top of each other over `x`, in order; what is unknown counts as nothing in the sum, and is a dash in the text. */
export function Areas({ label, x, areas, format, at }: { label: string; x: number[]; areas: Area[]; format: (y: number | null) => string; at: (x: number) => string }) {
  const [over, setOver] = useState(-1);
  const [frame, wide] = useWidth<SVGSVGElement>();
  const width = wide - 74;
  const height = 200;
  const last = x.length - 1;
  const sums = areas.map(() => new Float64Array(x.length));
  x.forEach((_, i) => areas.reduce((below, area, k) => (sums[k]![i] = below + (area.values[i] ?? 0)), 0));
  const top = sums[sums.length - 1] ?? new Float64Array(1);
  const most = Math.max(1, ...top);
  const peak = top.indexOf(Math.max(...top));
  const px = (i: number): number => 62 + (width * (x[i]! - x[0]!)) / Math.max(1, x[last]! - x[0]!);
  const py = (value: number): number => 6 + height * (1 - value / most);
  // Memory stays as it is until the next moment: steps, there along the top of an area and back along its bottom.
  const line = (values: Float64Array, back: boolean): string => {
    const points = x.map((_, i) => `${px(i).toFixed(1)} ${py(values[i]!).toFixed(1)}${i < last ? `L${px(i + 1).toFixed(1)} ${py(values[i]!).toFixed(1)}` : ""}`);
    return (back ? points.flatMap((point) => point.split("L")).reverse() : points).join("L");
  };
  const zero = new Float64Array(x.length);
  const moment = over >= 0 ? over : peak;
  const move = (event: MouseEvent & { currentTarget: SVGSVGElement }): void => {
    const box = event.currentTarget.getBoundingClientRect();
    const time = x[0]! + ((x[last]! - x[0]!) * (event.clientX - box.left - 62)) / width;
    const next = x.findIndex((value) => value > time);
    setOver(Math.max(0, (next < 0 ? x.length : next) - 1));
  };
  return (
    <figure class="chart">
      <svg ref={frame} viewBox={`0 0 ${wide} ${height + 22}`} height={height + 22} role="img" aria-label={`${label}; most ${format(most)} at ${at(x[peak]!)}`} onMouseMove={move} onMouseLeave={() => setOver(-1)}>
        {[0, 0.5, 1].map((share) => (
          <g key={share}>
            <line x1={62} x2={width + 62} y1={py(most * share)} y2={py(most * share)} class="grid" />
            <text x={58} y={py(most * share) + 4} text-anchor="end">{share ? format(most * share) : "0"}</text>
          </g>
        ))}
        {areas.map((area, k) => <path key={area.name} d={`M${line(sums[k]!, false)}L${line(k ? sums[k - 1]! : zero, true)}Z`} fill={categoryColour(area.name, theme.value)} />)}
        <line x1={px(moment)} x2={px(moment)} y1={6} y2={6 + height} class="cursor" />
        <text x={62} y={height + 19}>{at(x[0]!)}</text>
        <text x={62 + width} y={height + 19} text-anchor="end">{at(x[last]!)}</text>
      </svg>
      <figcaption>
        <span class="muted">{over < 0 ? "at the peak, " : ""}{at(x[moment]!)}:</span>
        {areas.map((area) => <span key={area.name}><i style={{ background: categoryColour(area.name, theme.value) }} />{area.name} {format(area.values[moment] ?? null)}</span>)}
      </figcaption>
    </figure>
  );
}
