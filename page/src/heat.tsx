// A table of numbers as colours: ranks by steps, ranks by ranks. Of more rows than pixels, a line is the largest of them.

import { useEffect, useMemo, useState } from "preact/hooks";
import { useWidth } from "./charts";
import { partColour, rgb } from "./colours";
import { count, DASH } from "./format";
import { theme } from "./state";

export interface Heat {
  label: string;
  rows: string[];
  columns: string[];
  /** Row after row; null where it is not known. */
  values: (number | null)[];
  format: (value: number | null) => string;
  /** What rows and columns are. */
  of: [rows: string, columns: string];
  square?: boolean;
  /** What it means that a number is not known. */
  unknown?: string;
  onCell?: (row: number, column: number) => void;
}

const [LEFT, TALLEST, WIDEST, CELL] = [72, 320, 900, 22];

export function HeatMap({ label, rows, columns, values, format, of, square = false, unknown = "not known", onCell }: Heat) {
  const [box, wide] = useWidth<HTMLDivElement>();
  const [canvas, setCanvas] = useState<HTMLCanvasElement | null>(null);
  const [over, setOver] = useState<[row: number, column: number] | null>(null);
  const room = Math.min(WIDEST, wide) - LEFT - 8;
  const cell = square ? Math.min(CELL, room / columns.length, TALLEST / rows.length) : 0;
  const width = Math.max(1, Math.floor(square ? cell * columns.length : Math.min(room, 60 * columns.length)));
  const height = Math.max(1, Math.floor(square ? cell * rows.length : Math.min(TALLEST, CELL * rows.length)));
  const known = useMemo(() => values.filter((value) => value !== null), [values]);
  const low = known.reduce((a, b) => Math.min(a, b), Infinity);
  const high = known.reduce((a, b) => Math.max(a, b), -Infinity);
  useEffect(() => {
    if (canvas) paint(canvas, width, height, { rows: rows.length, columns: columns.length, values, low, high }, theme.value);
  }, [canvas, width, height, values, theme.value]);
  const at = ({ offsetX: x, offsetY: y }: MouseEvent): [number, number] => [Math.min(rows.length - 1, Math.floor((y / height) * rows.length)), Math.min(columns.length - 1, Math.floor((x / width) * columns.length))];
  const told = over ? `${of[0]} ${rows[over[0]]}, ${of[1]} ${columns[over[1]]}: ${format(values[over[0] * columns.length + over[1]] ?? null)}` : "";
  const [down, across] = [every(rows.length, height, 14), every(columns.length, width, 44)];
  return (
    <figure class="chart heat" ref={box}>
      <div class="cells" style={{ paddingLeft: `${LEFT}px` }}>
        <div class="down" style={{ height: `${height}px`, width: `${LEFT - 6}px` }}>{down.map((i) => <span key={i} style={{ top: `${((i + 0.5) * height) / rows.length - 9}px` }}>{rows[i]}</span>)}</div>
        <canvas ref={setCanvas} role="img" aria-label={`${label}; least ${format(known.length ? low : null)}, most ${format(known.length ? high : null)}; the table below has the numbers`} style={{ width: `${width}px`, height: `${height}px` }} class={onCell ? "link" : ""}
          onMouseMove={(event) => setOver(at(event))} onMouseLeave={() => setOver(null)} onClick={(event) => onCell?.(...at(event))} />
        <div class="across" style={{ width: `${width}px` }}>{across.map((i) => <span key={i} style={{ left: `${((i + 0.5) * width) / columns.length}px` }}>{columns[i]}</span>)}</div>
      </div>
      <figcaption>
        <span class="muted">{of[0]} down, {of[1]} across</span>
        <span><i class="ramp" style={{ background: `linear-gradient(to right, ${inks(theme.value).join(", ")})` }} />{format(known.length ? low : null)}{high > low && ` to ${format(high)}`}</span>
        {known.length < values.length && <span><i style={{ background: "var(--line)" }} />{DASH} {unknown}</span>}
        {rows.length > height && <span class="muted">{count(rows.length)} rows: a line of pixels is the largest of some</span>}
        <span role="status">{told}</span>
      </figcaption>
    </figure>
  );
}

/** Which of so many labels have room. */
function every(number: number, pixels: number, each: number): number[] {
  const step = Math.max(1, Math.ceil((number * each) / pixels));
  return Array.from({ length: Math.ceil(number / step) }, (_, i) => i * step);
}

const inks = (of: "light" | "dark"): [string, string] => [of === "dark" ? "#1e2a38" : "#e8ecf8", partColour("computing", of)];

interface Cells {
  rows: number;
  columns: number;
  values: (number | null)[];
  low: number;
  high: number;
}

/** One pixel a cell, else the largest of those that share it; the browser makes the pixels as large as they are shown. */
function paint(canvas: HTMLCanvasElement, width: number, height: number, { rows, columns, values, low, high }: Cells, of: "light" | "dark"): void {
  const [across, down] = [Math.min(columns, width), Math.min(rows, height)];
  canvas.width = across;
  canvas.height = down;
  const context = canvas.getContext("2d");
  if (!context) return;
  const most = new Float64Array(across * down).fill(Number.NaN);
  values.forEach((value, i) => {
    if (value === null) return;
    const place = Math.floor((Math.floor(i / columns) * down) / rows) * across + Math.floor(((i % columns) * across) / columns);
    if (!(most[place]! >= value)) most[place] = value;
  });
  const image = context.createImageData(across, down);
  const [cold, hot] = inks(of).map(rgb) as [[number, number, number], [number, number, number]];
  const unknown = rgb(of === "dark" ? "#333a44" : "#d5d9df");
  most.forEach((value, i) => {
    const share = high > low ? (value - low) / (high - low) : 0.5;
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = Number.isNaN(value) ? unknown[c]! : Math.round(cold[c]! + (hot[c]! - cold[c]!) * share);
    image.data[4 * i + 3] = 255;
  });
  context.putImageData(image, 0, 0);
}
