// Numbers as people read them: three digits and a unit. Our own, because a browser's locale may be one that Intl rejects.

export const DASH = "–";

const digits = (value: number): string => {
  const size = Math.abs(value);
  return size >= 99.95 ? value.toFixed(0) : size >= 9.995 ? value.toFixed(1) : value.toFixed(2);
};

const DURATIONS: [number, string][] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
const BYTES: [number, string][] = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];

export function duration(ns: number | null | undefined): string {
  if (ns === null || ns === undefined) return DASH;
  if (!ns) return "0 ms";
  if (Math.abs(ns) >= 3.6e14) return `${digits(ns / 8.64e13)} d`;
  if (Math.abs(ns) >= 600e9) return `${(ns / 60e9).toFixed(0)} min`;
  for (const [size, unit] of DURATIONS) if (Math.abs(ns) >= 0.9995 * size) return `${digits(ns / size)} ${unit}`;
  return `${digits(ns)} ns`;
}

export function bytes(amount: number | null | undefined): string {
  if (amount === null || amount === undefined) return DASH;
  for (const [size, unit] of BYTES) if (Math.abs(amount) >= 0.9995 * size) return `${digits(amount / size)} ${unit}`;
  return `${amount} B`;
}

/** A change with its sign: + is more, − is less. */
export function sign(change: number, text: (value: number) => string): string {
  return `${change > 0 ? "+" : change < 0 ? "−" : ""}${text(Math.abs(change))}`;
}

/** A whole number with commas. */
export function count(value: number): string {
  return String(Math.round(value)).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

export function percent(share: number | null | undefined): string {
  if (share === null || share === undefined || Number.isNaN(share)) return DASH;
  return share > 0 && share < 0.0005 ? "< 0.1 %" : share < 0.0995 ? `${(100 * share).toFixed(1)} %` : `${(100 * share).toFixed(0)} %`;
}

/** A number of unknown unit: four digits, whole numbers with commas. */
export function plain(value: number): string {
  if (Number.isInteger(value)) return count(value);
  return Math.abs(value) >= 1000 ? count(value) : String(Number(value.toPrecision(4)));
}

const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]/gu;

/** Text of a run, for display: control and direction characters become visible, and it is cut at `most` characters. */
export function shown(text: string, most = 200): string {
  const cut = text.length > most ? `${text.slice(0, most - 1)}…` : text;
  return cut.replace(HIDDEN, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** A cell of CSV; one that a spreadsheet would run as a formula gets an apostrophe in front. */
export function csvCell(value: string | number | boolean | null): string {
  if (value === null) return "";
  let text = String(value);
  if (typeof value === "string" && /^[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]/.test(text)) text = `'${text}`;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
