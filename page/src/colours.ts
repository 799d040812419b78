// The palette of reference: each group of kinds has a colour, and a second channel (how tall, hatched), so that colour
// alone never decides. Contrast and colour blindness were checked for both grounds.

export type Group = "compute" | "communication" | "copy" | "data" | "sync" | "runtime" | "host" | "overhead";

const GROUPS: Record<Group, { light: string; dark: string; drawn: "full" | "half" | "thin" | "hatched" }> = {
  compute: { light: "#434fc8", dark: "#72adf5", drawn: "full" },
  communication: { light: "#955733", dark: "#dd8208", drawn: "full" },
  copy: { light: "#b78d12", dark: "#f6dd8c", drawn: "full" },
  data: { light: "#12a1a5", dark: "#5fa785", drawn: "half" },
  sync: { light: "#5b2e5e", dark: "#9c52b1", drawn: "half" },
  runtime: { light: "#656f8e", dark: "#c0e4fc", drawn: "thin" },
  host: { light: "#364b00", dark: "#accb1a", drawn: "thin" },
  overhead: { light: "#de6977", dark: "#d22d46", drawn: "hatched" },
};

const OF_KIND: Record<string, Group> = {
  kernel: "compute", operator: "compute", other: "compute",
  collective: "communication",
  memcpy: "copy", memset: "copy",
  data: "data",
  sync: "sync",
  runtime: "runtime", driver: "runtime",
  python: "host", annotation: "host", phase: "host", step: "host",
  garbage: "overhead", compile: "overhead", overhead: "overhead",
};

export const GROUND = { light: "#ffffff", dark: "#14171c" };
export type Theme = "light" | "dark";

export const groupOf = (kind: string): Group => OF_KIND[kind] ?? "compute";
export const colourOf = (kind: string, theme: Theme): string => GROUPS[groupOf(kind)][theme];
export const drawnAs = (kind: string): "full" | "half" | "thin" | "hatched" => GROUPS[groupOf(kind)].drawn;

const IDLE = { light: "#c4cad3", dark: "#4a5463" };
const PARTS: Record<string, Group> = {
  computing: "compute", communication: "communication", copy: "copy", "data wait": "data", sync: "sync", "host only": "host",
  forward: "compute", backward: "copy", optimizer: "data", data: "sync", evaluation: "host", checkpoint: "overhead",
  logging: "overhead", other: "runtime",
};

/** The colour of a part of the step, or of a phase. */
export function partColour(name: string, theme: Theme): string {
  const group = PARTS[name];
  return group ? GROUPS[group][theme] : IDLE[theme];
}

const OVERLAYS: Record<string, Group> = {
  computing: "compute", communication: "communication", copy: "copy", "data wait": "data", "synchronising call": "sync", collective: "communication",
  allocator: "runtime", compiling: "overhead", "garbage collection": "overhead", profiler: "overhead", "host preparing": "host",
  "launch latency": "copy", queued: "compute", python: "host", waiting: "sync", "waiting for a core": "sync",
};

/** Whether a kind is a part of an overlay: a reason for idle time, or a part of the critical path. */
export const isOverlay = (kinds: string[], kind: number): boolean => kind > kinds.indexOf("other");

/** The colour of a reason for idle time. */
export function overlayColour(name: string, theme: Theme): string {
  const group = OVERLAYS[name];
  return group ? GROUPS[group][theme] : IDLE[theme];
}

const CATEGORIES: Record<string, Group> = {
  parameters: "compute", gradients: "copy", "optimizer state": "sync", activations: "data", batch: "communication", temporary: "runtime",
};

/** The colour of what memory is for. */
export function categoryColour(name: string, theme: Theme): string {
  const group = CATEGORIES[name];
  return group ? GROUPS[group][theme] : IDLE[theme];
}

export function rgb(hex: string): [number, number, number] {
  const value = Number.parseInt(hex.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

const luminance = (hex: string): number => {
  const [r, g, b] = rgb(hex).map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4)) as [number, number, number];
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};

/** White or near black, whichever is easier to read on a colour. */
export const labelOn = (hex: string): string => {
  const light = luminance(hex);
  return 1.05 / (light + 0.05) > (light + 0.05) / (luminance("#14171c") + 0.05) ? "#ffffff" : "#14171c";
};
