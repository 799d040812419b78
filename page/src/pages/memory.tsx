// Memory over time, and every block by size and life.

import { Areas } from "../areas";
import { Lines, type Line } from "../charts";
import { bytes, duration, shown } from "../format";
import type { Content, Page, Result } from "../model";
import { AllResults, useResult } from "./results";

const numbers = (result: Result, name: string): (number | null)[] => (result.columns.find((column) => column.name === name)?.values ?? []) as (number | null)[];

function curves(result: Result): Line[] {
  const texts = ["Component", "Device Type"].map((name) => result.columns.find((column) => column.name === name)?.values ?? []);
  const device = (texts[1] ?? []).map((of, row) => [texts[0]?.[row], of].filter(Boolean).map(String).join(" "));
  const time = numbers(result, "Timestamp(us)");
  const found: Line[] = [];
  for (const one of [...new Set(device)]) {
    const rows = device.flatMap((value, i) => (value === one ? [i] : []));
    for (const [column, what] of [["Total Allocated(MB)", "allocated"], ["Total Reserved(MB)", "reserved"]] as const) {
      const values = numbers(result, column);
      if (rows.some((row) => values[row] !== null && values[row] !== undefined && values[row] !== 0))
        found.push({ name: `${one} ${what}`, x: rows.map((row) => (Number(time[row]) - Number(time[rows[0]!])) * 1e3), y: rows.map((row) => (values[row] === null || values[row] === undefined ? null : values[row]! * 2 ** 20)) });
    }
  }
  return found;
}

/** The columns of memory_curve that are not categories. */
const OTHERS = ["Allocated(MB)", "Reserved(MB)"];

/** The memory of each device by what it is for, as areas over time. */
function ByCategory({ of }: { of: Result }) {
  const device = of.columns.find((column) => column.name === "Device_id")?.values ?? [];
  const time = numbers(of, "Timestamp(us)");
  const columns = of.columns.filter((column) => column.name.endsWith("(MB)") && !OTHERS.includes(column.name));
  return (
    <>
      {[...new Set(device)].map((one) => {
        const rows = device.flatMap((value, i) => (value === one ? [i] : []));
        const areas = columns
          .map((column) => ({ name: column.name.slice(0, -4).toLowerCase(), values: rows.map((row) => { const value = column.values[row]; return typeof value === "number" ? value * 2 ** 20 : null; }) }))
          .filter((area) => area.values.some((value) => value));
        return rows.length > 1 && areas.length > 0 && (
          <div key={String(one)}>
            <h2>{shown(String(one), 40)} by what it is for</h2>
            <Areas label={`Memory of ${shown(String(one), 40)} by category`} x={rows.map((row) => (Number(time[row]) - Number(time[rows[0]!])) * 1e3)} areas={areas} format={bytes} at={(value) => `+${duration(value)}`} />
          </div>
        );
      })}
    </>
  );
}

export function Memory({ content, page }: { content: Content; page: Page }) {
  const curve = useResult(content, page.results.includes("memory_curve") ? "memory_curve" : "memory_record");
  const record = useResult(content, page.results.includes("memory_record") ? "memory_record" : "memory_curve");
  const lines = record && typeof record !== "string" && record.rows ? curves(record) : [];
  return (
    <>
      <h1>Memory</h1>
      {(curve === null || record === null) && <p class="muted pending">reading …</p>}
      {curve && typeof curve !== "string" && curve.rows > 0 && <ByCategory of={curve} />}
      {lines.length > 0 && <><h2>allocated and reserved</h2><Lines label="Memory over time" lines={lines} format={bytes} x={(value) => `+${duration(value)}`} /></>}
      <AllResults content={content} page={page} />
    </>
  );
}
