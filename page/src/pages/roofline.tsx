// The roofline: what operators achieve against what their device can do, by the operations that they do for a byte.

import { useState } from "preact/hooks";
import { useWidth } from "../charts";
import { partColour } from "../colours";
import { duration, percent, plain, shown } from "../format";
import type { Content, Page, Result } from "../model";
import { theme } from "../state";
import { AllResults, useResult } from "./results";

interface Point {
  name: string;
  x: number;
  y: number;
  time: number;
  bound: string;
  share: number | null;
}

/** What a device can do: so many operations a second, so many bytes a second; both in 10⁹. */
interface Roof {
  type: string;
  flops: number;
  bytes: number;
}

interface OfDevice {
  device: string;
  points: Point[];
  roofs: Roof[];
}

function read(of: Result): OfDevice[] {
  const column = (name: string): (string | number | boolean | null)[] => of.columns.find((one) => one.name === name)?.values ?? [];
  const [device, name, intensity, achieved, time, bound, share, flops, moved, type] = ["Device_id", "Name", "Intensity(FLOP/B)", "Achieved(GFLOP/s)", "Total Time(us)", "Bound", "Roofline(%)", "Peak(GFLOP/s)", "Peak(GB/s)", "Type"].map(column) as [string[], string[], number[], number[], number[], string[], number[], number[], number[], string[]];
  return [...new Set(device)].map((one) => {
    const rows = device.flatMap((value, row) => (value === one ? [row] : []));
    const placed = rows.filter((row) => intensity[row]! > 0 && achieved[row]! > 0);
    const roofs = new Map<string, Roof>();
    for (const row of placed) if (flops[row] && moved[row]) roofs.set(`${flops[row]} ${moved[row]}`, { type: type[row] ?? "", flops: flops[row]!, bytes: moved[row]! });
    const points = placed.map((row) => ({ name: name[row] ?? "", x: intensity[row]!, y: achieved[row]!, time: (time[row] ?? 0) * 1e3, bound: bound[row] ?? "", share: share[row] ?? null }));
    return { device: one, points, roofs: [...roofs.values()] };
  }).filter((one) => one.points.length > 0);
}

export function Roofline({ content, page }: { content: Content; page: Page }) {
  const found = useResult(content, page.results.includes("roofline") ? "roofline" : page.results[0] ?? "roofline");
  return (
    <>
      <h1>{page.title}</h1>
      {found === null && <p class="muted pending">reading …</p>}
      {found && typeof found !== "string" && <div class="charts">{read(found).map((one) => <Chart key={one.device} of={one} />)}</div>}
      <AllResults content={content} page={page} />
    </>
  );
}

const [LEFT, HEIGHT] = [82, 260];
const BOUNDS: Record<string, string> = { compute: "computing", memory: "copy" };
const RATES: [number, string][] = [[1e6, "P"], [1e3, "T"], [1, "G"], [1e-3, "M"], [1e-6, "k"], [1e-9, ""]];
const rate = (value: number): string => {
  const [size, prefix] = RATES.find(([one]) => value >= 0.9995 * one) ?? RATES[RATES.length - 1]!;
  return `${plain(Number((value / size).toPrecision(3)))} ${prefix}FLOP/s`;
};

function Chart({ of }: { of: OfDevice }) {
  const [over, setOver] = useState<Point | null>(null);
  const [frame, wide] = useWidth<SVGSVGElement>();
  const width = Math.min(900, wide) - LEFT - 20;
  const ridges = of.roofs.map((roof) => roof.flops / roof.bytes);
  const [x0, x1] = decades([...of.points.map((point) => point.x), ...ridges]);
  const [y0, y1] = decades([...of.points.map((point) => point.y), ...of.roofs.map((roof) => roof.flops)]);
  const px = (x: number): number => LEFT + (width * (Math.log10(x) - x0)) / (x1 - x0);
  const py = (y: number): number => 8 + (HEIGHT * (y1 - Math.log10(y))) / (y1 - y0);
  const most = Math.max(...of.points.map((point) => point.time), 1);
  const powers = (from: number, to: number): number[] => Array.from({ length: to - from + 1 }, (_, i) => from + i);
  const bounds = [...new Set(of.points.map((point) => point.bound))];
  const colour = (bound: string): string => partColour(BOUNDS[bound] ?? "other", theme.value);
  const sloped = (roof: Roof): string => {
    const left = Math.max(10 ** x0, 10 ** y0 / roof.bytes);
    return `M${px(left)} ${py(left * roof.bytes)}L${px(Math.min(10 ** x1, roof.flops / roof.bytes))} ${py(Math.min(roof.flops, 10 ** x1 * roof.bytes))}L${px(10 ** x1)} ${py(Math.min(roof.flops, 10 ** x1 * roof.bytes))}`;
  };
  return (
    <section aria-label={`Roofline of ${of.device}`}>
      <h2>{shown(of.device, 40)} <span class="muted">a point is an operator, as large as its time; {of.roofs.length ? "on the line it does all that the device can" : "what the device can do is not known"}</span></h2>
      <figure class="chart">
        <svg ref={frame} viewBox={`0 0 ${Math.min(900, wide)} ${HEIGHT + 44}`} height={HEIGHT + 44} role="img" aria-label={`Roofline of ${of.device}, ${of.points.length} operators; the table below has the numbers`}>
          {powers(x0, x1).map((power) => <g key={power}><line x1={px(10 ** power)} x2={px(10 ** power)} y1={8} y2={8 + HEIGHT} class="grid" /><text x={px(10 ** power)} y={HEIGHT + 22} text-anchor="middle">{plain(10 ** power)}</text></g>)}
          {powers(y0, y1).map((power) => <g key={power}><line x1={LEFT} x2={LEFT + width} y1={py(10 ** power)} y2={py(10 ** power)} class="grid" /><text x={LEFT - 4} y={py(10 ** power) + 4} text-anchor="end">{rate(10 ** power)}</text></g>)}
          <text x={LEFT + width / 2} y={HEIGHT + 40} text-anchor="middle">operations for a byte (FLOP/B)</text>
          {of.roofs.map((roof, i) => <g key={i}><path d={sloped(roof)} class="roof" /><text x={LEFT + width} y={py(Math.min(roof.flops, 10 ** x1 * roof.bytes)) - 4} text-anchor="end">{roof.type && `${roof.type}, `}{rate(roof.flops)} · {plain(Number(roof.bytes.toPrecision(3)))} GB/s</text></g>)}
          {of.points.map((point, i) => <circle key={i} cx={px(point.x)} cy={py(point.y)} r={3 + 9 * Math.sqrt(point.time / most)} fill={colour(point.bound)} fill-opacity={over && over !== point ? 0.35 : 0.75} onMouseEnter={() => setOver(point)} onMouseLeave={() => setOver(null)}><title>{shown(point.name, 200)}</title></circle>)}
        </svg>
        <figcaption>
          {bounds.map((bound) => <span key={bound}><i style={{ background: colour(bound) }} />{bound ? `bound by ${bound}` : "bound not known"}</span>)}
          <span role="status">{over && `${shown(over.name, 90)}: ${plain(Number(over.x.toPrecision(3)))} FLOP/B, ${rate(over.y)}, ${duration(over.time)}${over.share === null ? "" : `, ${percent(over.share / 100)} of the roof`}`}</span>
        </figcaption>
      </figure>
    </section>
  );
}

/** The powers of ten around some numbers. */
function decades(values: number[]): [number, number] {
  return [Math.floor(Math.log10(Math.min(...values))) - 1, Math.ceil(Math.log10(Math.max(...values))) + 1];
}
