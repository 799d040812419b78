// What the page shows now. The hash of the address holds all of it, so that a link opens the same.

import { computed, effect, signal } from "@preact/signals";
import type { Theme } from "./colours";
import type { Compared, Content, Listed } from "./model";
import type { Source } from "./source";

export const source = signal<Source | null>(null);
export const content = signal<Content | Compared | null>(null);
/** The runs of a directory, where that is what is shown. */
export const listed = signal<Listed[] | null>(null);
export const failure = signal<string>("");
export const help = signal(false);
export const said = signal("");

const dark = matchMedia("(prefers-color-scheme: dark)");
const chosen = signal<Theme | null>(null);
const system = signal<Theme>(dark.matches ? "dark" : "light");
dark.addEventListener("change", () => (system.value = dark.matches ? "dark" : "light"));
export const theme = computed<Theme>(() => chosen.value ?? system.value);
export const toggleTheme = (): void => void (chosen.value = theme.value === "dark" ? "light" : "dark");

/** The parts of the link: p page, t window (ns), sel place of a span, q search, rank, range, lanes what they are filtered by, pin, unfold and hide tracks, whole ranks, over and marks what lies over the lanes; r result, f filter, g group, o order of its table; fo order, fk kinds, fn name, at and up boxes of the flame graph; beside two runs of a list, steps the step of each. */
export const link = signal<Record<string, string>>(read());

/** In a notebook the page lies in a frame without an address of its own, so that the link is kept here only. */
const addressed = location.protocol !== "about:";

function read(): Record<string, string> {
  const { token: _, ...parts } = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  return parts;
}

/** Change parts of the link; with `step`, as a step of the browser's history. */
export function go(parts: Record<string, string | null>, step = false): void {
  const next = { ...link.peek() };
  for (const [key, value] of Object.entries(parts)) {
    if (value === null || value === "") delete next[key];
    else next[key] = value;
  }
  link.value = next;
  if (!addressed) return;
  const hash = `#${new URLSearchParams(next)}`;
  if (hash === location.hash) return;
  if (step) history.pushState(null, "", hash);
  else history.replaceState(null, "", hash);
}

/** Copy a text, and say so; whether that was possible. */
export async function copy(text: string, what = "copied"): Promise<boolean> {
  const done = await (navigator.clipboard?.writeText(text) ?? Promise.reject()).then(() => true, () => false);
  said.value = done ? what : "not copied";
  return done;
}

addEventListener("popstate", () => (link.value = read()));

const first = document.getElementById("page")?.dataset["first"] ?? "overview";
export const page = computed(() => link.value["p"] ?? first);
/** What the link says of one page only: the order of a table, of the flame graph. */
const OF_PAGE = ["r", "f", "g", "o", "fo", "fk", "fn", "at", "up"];
export const open = (name: string, more: Record<string, string | null> = {}): void => go({ ...Object.fromEntries(OF_PAGE.map((key) => [key, null])), p: name, ...more }, true);


effect(() => {
  document.documentElement.dataset["theme"] = theme.value;
});
