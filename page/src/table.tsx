// A table of any length: forty rows in the document, sorted and filtered over all of them, copied as CSV.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { bytes, count, csvCell, DASH, duration, percent, plain, shown, sign } from "./format";
import type { Column } from "./model";
import { content, copy, go, link } from "./state";

const ROW = 24;
const SHOWN = 40;

type Value = string | number | boolean | null;

export interface TableProps {
  label: string;
  columns: Column[];
  of?: number;
}

/** What is left of a column's name without its unit, and the unit. */
function unit({ name, unit: given }: Column): [string, string] {
  if (given) return [name, given];
  const found = /^(.*?)\s*\((us|ns|ms|KB|MB|bytes|%|GB\/s|ratio)\)$/.exec(name);
  if (found) return [found[1]!, found[2]!];
  return name.endsWith("_ns") ? [name.slice(0, -3).replaceAll("_", " "), "ns"] : [name.replaceAll("_", " "), ""];
}

const SCALE: Record<string, (value: number) => string> = {
  us: (value) => duration(value * 1e3),
  ms: (value) => duration(value * 1e6),
  ns: duration,
  KB: (value) => bytes(value * 1024),
  MB: (value) => bytes(value * 1024 * 1024),
  bytes,
  "%": (value) => percent(value / 100),
  "GB/s": (value) => `${plain(value)} GB/s`,
};

/** A point in time: µs or ns since the Unix epoch. It is shown as the time since the start of the timeline. */
const isInstant = (value: Value, of: Column): value is number => typeof value === "number" && ((unit(of)[1] === "us" && value > 1e14) || value > 1e17);

/** Since the start of the timeline, ns. Tables of a job have the clock of the job, others that of their rank. */
function since(time: number, ofJob: boolean): number {
  const of = content.value && "timeline" in content.value ? content.value.timeline : null;
  if (!of) return time;
  const shift = of.ranks.find((row) => row.rank === content.value!.rank)?.read?.shift ?? 0;
  return ofJob && of.from !== null ? time - Number(of.from) : time - Number(of.origin) + shift;
}

export function cell(value: Value, of: Column, ofJob = false): string {
  if (value === null) return DASH;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (isInstant(value, of)) {
    const time = since(value * (unit(of)[1] === "us" ? 1e3 : 1), ofJob);
    return `${time < 0 ? "−" : "+"}${duration(Math.abs(time))}`;
  }
  const text = SCALE[unit(of)[1]];
  if (typeof value === "string") return text && /^\[[-\d., ]+\]$/.test(value) ? (JSON.parse(value) as number[]).map(text).join(", ") : shown(value);
  if (of.signed) return sign(value, text ?? plain);
  return (text ?? ((number: number) => aligned(number, of)))(value);
}

/** The digits behind the point that a column of numbers without a unit has; a number too small for them has its own. */
function aligned(value: number, of: Column): string {
  let digits = DIGITS.get(of);
  if (digits === undefined) {
    const numbers = of.values.filter((one) => typeof one === "number");
    const most = numbers.reduce((a, b) => Math.max(a, Math.abs(b)), 0);
    digits = numbers.every(Number.isInteger) || most >= 1000 ? 0 : most < 1 ? 4 : most < 10 ? 3 : 2;
    DIGITS.set(of, digits);
  }
  return !digits || Math.abs(value) < 10 ** -digits ? plain(value) : value.toFixed(digits);
}
const DIGITS = new WeakMap<Column, number>();

interface Order {
  filter: string;
  group: number;
  sort: { column: number; down: boolean } | null;
}

/** How a table is ordered; the link holds it for the table that was touched last. */
function useOrder(label: string, columns: Column[]): [Order, (next: Partial<Order>) => void] {
  const [order, setOrder] = useState<Order>(() => {
    const { r, f = "", g, o } = link.peek();
    if (r !== label) return { filter: "", group: -1, sort: null };
    const group = columns.findIndex((column) => column.name === g);
    const sort = o ? { column: Number(o.slice(1)), down: o.startsWith("-") } : null;
    return { filter: f, group, sort: sort && Number.isInteger(sort.column) ? sort : null };
  });
  const change = (next: Partial<Order>): void => {
    const all = { ...order, ...next };
    setOrder(all);
    go({ r: label, f: all.filter, g: columns[all.group]?.name ?? null, o: all.sort && `${all.sort.down ? "-" : "+"}${all.sort.column}` });
  };
  return [order, change];
}

/** Marks a box as long as columns are out of sight to its right: when it or what it holds has another size, and when asked. */
function useHint(box: { current: HTMLElement | null }): () => void {
  const look = (): void => void box.current?.classList.toggle("beyond", box.current.scrollLeft + box.current.clientWidth < box.current.scrollWidth - 1);
  useEffect(() => {
    const watch = new ResizeObserver(look);
    for (const one of [box.current, box.current?.firstElementChild]) if (one) watch.observe(one);
    return () => watch.disconnect();
  }, []);
  return look;
}

export function Table({ label, columns, of }: TableProps) {
  const [{ filter, group, sort }, change] = useOrder(label, columns);
  const [first, setFirst] = useState(0);
  const box = useRef<HTMLDivElement>(null);
  const grouped = useMemo(() => (group < 0 ? columns : groupBy(columns, group)), [columns, group]);
  const rows = useMemo(() => order(grouped, sort, filter), [grouped, sort, filter]);
  const numeric = useMemo(() => grouped.map((column) => column.values.some((value) => typeof value === "number")), [grouped]);
  const largest = useMemo(() => grouped.map((column, i) => (numeric[i] && !column.signed && unit(column)[1] && !OF_ONE.test(column.name) && !column.values.some((value) => isInstant(value, column)) ? Math.max(...sample(column.values)) : 0)), [grouped]);
  const height = columns[0]?.values.length ?? 0;
  const texts = columns.map((column, i) => ({ column, i })).filter(({ column }) => column.values.some((value) => typeof value === "string"));
  const hint = useHint(box);
  const scrolled = (): void => { hint(); setFirst(Math.max(0, Math.floor((box.current?.scrollTop ?? 0) / ROW) - 5)); };
  const visible = rows.slice(first, first + SHOWN);
  return (
    <section class="table" aria-label={label}>
      <div class="tools">
        <input type="search" placeholder="filter" aria-label={`filter ${label}`} value={filter} onInput={(event) => { change({ filter: event.currentTarget.value }); setFirst(0); }} />
        {texts.length > 1 && <label>group by <select value={String(group)} onChange={(event) => change({ group: Number(event.currentTarget.value), sort: null })}>
          <option value="-1">–</option>
          {texts.map(({ column, i }) => <option key={i} value={String(i)}>{shown(column.name, 40)}</option>)}
        </select></label>}
        <span class="muted">{rowsText(rows.length, group < 0 ? (of ?? height) : grouped[0]?.values.length ?? 0)}{of !== undefined && of > height ? ` (${count(height)} are in this file)` : ""}</span>
        <span class="fill" />
        <button onClick={() => void copy(csv(grouped, rows))}>copy as CSV</button>
      </div>
      <div class="scroll" ref={box} onScroll={scrolled} tabIndex={0} role="region" aria-label={`${label}, rows`}>
        <table aria-rowcount={rows.length}>
          <thead><tr>{grouped.map((column, i) => (
            <th key={i} scope="col" class={numeric[i] ? "number" : ""} aria-sort={sort?.column === i ? (sort.down ? "descending" : "ascending") : "none"}>
              <button onClick={() => change({ sort: sort?.column === i ? (sort.down === !!numeric[i] ? { column: i, down: !sort.down } : null) : { column: i, down: !!numeric[i] } })}>
                {shown(unit(column)[0], 40)}{sort?.column === i ? (sort.down ? " ▾" : " ▴") : ""}
              </button>
            </th>
          ))}</tr></thead>
          <tbody>
            {first > 0 && <tr aria-hidden="true" style={{ height: `${first * ROW}px` }}><td colSpan={grouped.length} /></tr>}
            {visible.map((row) => (
              <tr key={row}>{grouped.map((column, i) => {
                const value = column.values[row] ?? null;
                const text = cell(value, column, label.startsWith("cluster_"));
                const barred = largest[i]! > 0;
                const bar = barred && typeof value === "number" && value > 0 ? Math.max(1, (60 * value) / largest[i]!) : 0;
                return (
                  <td key={i} class={`${numeric[i] ? "number" : ""} ${barred ? "barred" : ""} ${column.signed && typeof value === "number" && value ? (value > 0 ? "more" : "less") : ""} ${value === 0 ? "muted" : ""}`.trim()} title={value === null ? "unknown" : String(value).slice(0, 2000)}
                    style={barred ? { backgroundSize: `${bar}px 9px` } : undefined!}>{text}</td>
                );
              })}</tr>
            ))}
            {first + SHOWN < rows.length && <tr aria-hidden="true" style={{ height: `${(rows.length - first - SHOWN) * ROW}px` }}><td colSpan={grouped.length} /></tr>}
          </tbody>
        </table>
      </div>
    </section>
  );
}

const rowsText = (rows: number, of: number): string => `${rows === of ? "" : `${count(rows)} of `}${count(of)} ${of === 1 ? "row" : "rows"}`;

/** Figures of one call: they do not add up, so a bar beside them says nothing. */
const OF_ONE = /\b(start|timestamp|min|max|avg|mean|median|least|most|P5|P95|deviation|low|high)\b/i;

/** Rows of a table as CSV. */
function csv(columns: Column[], rows: number[]): string {
  const lines = [columns.map((column) => csvCell(column.name)).join(","), ...rows.map((row) => columns.map((column) => csvCell(column.values[row] ?? null)).join(","))];
  return `${lines.join("\n")}\n`;
}

const sample = (values: Value[]): number[] => {
  const found = [0];
  const step = Math.max(1, Math.floor(values.length / 20000));
  for (let i = 0; i < values.length; i += step) if (typeof values[i] === "number") found.push(values[i] as number);
  return found;
};

function order(columns: Column[], sort: { column: number; down: boolean } | null, filter: string): number[] {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const texts = columns.filter((column) => column.values.some((value) => typeof value === "string"));
  let rows = Array.from({ length: columns[0]?.values.length ?? 0 }, (_, i) => i);
  if (words.length) rows = rows.filter((row) => words.every((word) => texts.some((column) => String(column.values[row] ?? "").toLowerCase().includes(word))));
  const by = sort ? columns[sort.column] : undefined;
  if (by && sort) {
    const compare = (a: Value, b: Value): number => {
      if (a === null || b === null) return a === b ? 0 : a === null ? 1 : -1; // unknown comes last
      const less = typeof a === "number" && typeof b === "number" ? a - b : String(a) < String(b) ? -1 : String(a) > String(b) ? 1 : 0;
      return sort.down ? -less : less;
    };
    rows.sort((a, b) => compare(by.values[a] ?? null, by.values[b] ?? null) || a - b);
  }
  return rows;
}

/** One row a value of a column: its number, and the sums of the columns that add up (times, bytes, counts). */
function groupBy(columns: Column[], by: number): Column[] {
  const key = columns[by]!;
  const add = columns.filter((column, i) => i !== by && /\((us|ns|ms|KB|MB|bytes)\)$|^Count$|^FLOPs$|^Bytes$/.test(column.name) && !/(start|time)\(us\)$|min |max |avg|timestamp/i.test(column.name.replace(/duration|total time|self/i, "")));
  const place = new Map<Value, number>();
  const names: Value[] = [];
  const counts: number[] = [];
  const sums: number[][] = add.map(() => []);
  key.values.forEach((value, row) => {
    let at = place.get(value);
    if (at === undefined) {
      at = names.length;
      place.set(value, at);
      names.push(value);
      counts.push(0);
      for (const sum of sums) sum.push(0);
    }
    counts[at]! += 1;
    add.forEach((column, i) => {
      const more = column.values[row];
      if (typeof more === "number") sums[i]![at!]! += more;
    });
  });
  const rows = names.map((_, i) => i).sort((a, b) => (sums[0]?.[b] ?? counts[b]!) - (sums[0]?.[a] ?? counts[a]!));
  const taken = <T,>(values: T[]): T[] => rows.map((row) => values[row]!);
  return [
    { name: key.name, values: taken(names) },
    { name: "Rows", values: taken(counts) },
    ...add.map((column, i) => ({ ...column, values: taken(sums[i]!) })),
  ];
}
