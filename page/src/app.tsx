// The frame around every page: header, list of pages, help; and the keys that work everywhere.

import { useEffect } from "preact/hooks";
import { count, shown } from "./format";
import type { Compared, Content, Frame } from "./model";
import { Beside, placesOf } from "./pages/beside";
import * as comparison from "./pages/comparison";
import { inCode } from "./pages/findings";
import { Flame } from "./pages/flame";
import { Losses } from "./pages/losses";
import { Memory } from "./pages/memory";
import { Overview } from "./pages/overview";
import { AllRanks, Communication } from "./pages/ranks";
import { Steps } from "./pages/steps";
import { Work } from "./pages/top";
import { complete } from "./parts";
import { Results } from "./pages/results";
import { Roofline } from "./pages/roofline";
import { Runs } from "./pages/runs";
import { content, failure, go, help, link, listed, open, page, said, source, theme, toggleTheme } from "./state";
import { Timeline } from "./timeline/view";

const KEYS: Record<string, string> = {
  o: "overview", t: "timeline", s: "steps", p: "operators", k: "kernels", m: "memory", f: "flame", d: "data", c: "communication",
  r: "roofline", l: "losses", w: "waits", y: "code", a: "ranks", e: "exact",
};

export function App() {
  useEffect(() => {
    let after = false;
    const key = (event: KeyboardEvent): void => {
      if (event.ctrlKey || event.metaKey || event.altKey || isField(event.target)) return;
      if (after) {
        after = false;
        const name = KEYS[event.key];
        const there = content.peek()?.pages.find((one) => one.name === name && !one.absent && !one.pending);
        if (there) open(there.name);
        event.stopImmediatePropagation();
      } else if (event.key === "g") after = true;
      else if (event.key === "?") help.value = !help.value;
      else if (event.key === "Escape" && help.value) help.value = false;
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", key, true);
    return () => removeEventListener("keydown", key, true);
  }, []);
  const shownContent = content.value;
  if (failure.value) return <main class="alone" id="main"><h1>stepscope</h1><p class="error">{shown(failure.value, 1000)}</p></main>;
  if (listed.value) {
    const places = placesOf(link.value["beside"], listed.value.length);
    return <>{places ? <Beside places={places} /> : <Runs runs={listed.value} />}<p class="said" role="status" aria-live="polite">{said.value}</p>{help.value && <Help />}</>;
  }
  if (!shownContent) return <main class="alone" id="main"><h1>stepscope</h1><p>reading …</p></main>;
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>Skip to the page</a>
      <Header content={shownContent} />
      <div class="columns">
        <Pages content={shownContent} />
        <main id="main" tabIndex={0} class={page.value === "timeline" ? "wide" : ""}><Shown content={shownContent} /></main>
      </div>
      <p class="said" role="status" aria-live="polite">{said.value}</p>
      {help.value && <Help />}
    </>
  );
}

const isField = (target: EventTarget | null): boolean => target instanceof HTMLInputElement || target instanceof HTMLSelectElement || target instanceof HTMLTextAreaElement;

function Header({ content: of }: { content: Frame }) {
  const lost = of.losses.filter((loss) => loss.severity !== "info");
  return (
    <header>
      <span class="brand">stepscope</span>
      {of.listed && <a href="../">all runs</a>}
      <span class="run" title={of.path}>{shown(of.title, 80)}</span>
      {of.facts.map(([name, value]) => <span class="fact" key={name} title={name}>{shown(value, 60)}</span>)}
      <span class="fill" />
      {of.ranks.length > 1 && (
        <label>rank <select value={String(of.rank)} onChange={(event) => changeRank(Number(event.currentTarget.value))}>
          {of.ranks.map((rank) => <option key={rank} value={String(rank)}>{rank}</option>)}
        </select></label>
      )}
      {of.recording && source.value?.live && <Recording />}
      {lost.length > 0 && <button class="badge" onClick={() => open("losses")}>{count(lost.length)} {lost.length === 1 ? "loss" : "losses"}</button>}
      <button onClick={toggleTheme} aria-label={`change to ${theme.value === "dark" ? "light" : "dark"} colours`}>{theme.value === "dark" ? "light" : "dark"}</button>
      <button onClick={() => (help.value = true)} aria-label="keys">?</button>
    </header>
  );
}

/** How often it is asked whether a recording has grown, ms; and the most part of the time that reading it again may take. */
const [ASKED_MS, MOST_PART] = [2000, 0.1];

/** A run that is being recorded: what came since is shown by itself, while nothing is selected that would be lost. */
function Recording() {
  useEffect(() => {
    let [known, next, busy] = [-1, 0, false];
    const look = async (): Promise<void> => {
      const { sel, range } = link.peek();
      if (busy || document.hidden || sel || range || performance.now() < next) return;
      busy = true;
      const size = await source.peek()!.grown().catch(() => known);
      const begin = performance.now();
      if (size !== known) await readAgain(); // at first, too: it may have grown since the page was asked for
      known = size;
      next = performance.now() + (performance.now() - begin) / MOST_PART;
      busy = false;
    };
    const timer = setInterval(() => void look(), ASKED_MS);
    return () => clearInterval(timer);
  }, []);
  return <button onClick={() => void readAgain()} title="it is read by itself, too, while nothing is selected">recording: read again</button>;
}

/** Show what was recorded since: spans have new places, so none stays selected; the window stays. */
async function readAgain(): Promise<void> {
  const found = await source.peek()?.again().catch((error: unknown) => void (said.value = String(error)));
  if (!found) return;
  const before = content.peek();
  const focus = before && "timeline" in before ? before.timeline?.focus.join() : undefined;
  go({ sel: null, t: link.peek()["t"] ?? focus ?? null });
  content.value = found;
  said.value = "read again";
}

async function changeRank(rank: number): Promise<void> {
  const from = source.peek();
  if (!from) return;
  go({ rank: String(rank), t: null, sel: null, range: null, unfold: null, pin: null, hide: null, whole: null });
  const found = await from.content(rank);
  if (!("runs" in found)) content.value = found;
}

function Pages({ content: of }: { content: Frame }) {
  const absent = of.pages.filter((one) => one.absent);
  const pending = of.pages.some((one) => one.pending);
  useEffect(() => {
    if (pending && "names" in of) void complete(of as Content, "pages").catch((error: unknown) => (said.value = String(error)));
  }, [pending, of.rank]);
  return (
    <nav aria-label="pages">
      {of.pages.filter((one) => !one.absent).map((one) => one.pending ? <span key={one.name} class="maybe muted" title="not known yet">{one.title} …</span> : (
        <a key={one.name} href={`#p=${one.name}`} aria-current={page.value === one.name ? "page" : undefined}
          onClick={(event) => { event.preventDefault(); open(one.name); }}>{one.title}</a>
      ))}
      {absent.length > 0 && <div class="absent"><p>Not in this run:</p>{absent.map((one) => <p key={one.name}><b>{one.title}</b>: {inCode(one.absent)}</p>)}</div>}
    </nav>
  );
}

function Shown({ content: of }: { content: Content | Compared }) {
  const found = of.pages.find((one) => one.name === page.value && !one.absent);
  if (found?.pending) return <p class="muted pending">looking whether this run has it …</p>;
  if (!found) {
    const absent = of.pages.find((one) => one.name === page.value);
    return absent ? <><h1>{absent.title}</h1><p>Not in this run: {inCode(absent.absent)}.</p></> : <p>No page is named {shown(page.value)}.</p>;
  }
  if ("comparison" in of) {
    if (found.name === "overview") return <comparison.Overview content={of} />;
    return found.name === "steps" ? <comparison.Steps content={of} page={found} /> : <Results content={of} page={found} />;
  }
  switch (found.name) {
    case "overview": return <Overview content={of} />;
    case "timeline": return <Timeline content={of} />;
    case "steps": return <Steps content={of} page={found} />;
    case "memory": return <Memory content={of} page={found} />;
    case "flame": return <Flame content={of} />;
    case "operators": case "kernels": return <Work content={of} page={found} />;
    case "ranks": return <AllRanks content={of} page={found} />;
    case "communication": return <Communication content={of} page={found} />;
    case "roofline": return <Roofline content={of} page={found} />;
    case "losses": return <Losses content={of} />;
    default: return <Results content={of} page={found} />;
  }
}

const HELP: [string, string][] = [
  ["g then o a t s w p k y m f d c r l e", "open a page by its first letter (a all ranks, p operators, y Python lines, e exact differences)"],
  ["W S", "timeline: zoom in, out"],
  ["A D", "pan left, right (Shift: five times as far)"],
  ["wheel, Ctrl+wheel", "scroll lanes, zoom at the pointer; Shift+wheel pans"],
  ["drag", "select a range of time, at the edges of spans (Alt: anywhere); its sums are below"],
  ["Z, F, 0", "zoom to the range, to the selected span, to everything"],
  ["M Shift+M", "range = selected span; keep the range as a mark"],
  ["I O", "the range begins with the selected span, ends with it"],
  [". ,", "next, previous span of the lane"],
  ["Up Down", "the span around, the span below"],
  ["N Shift+N", "next, previous span of the same name"],
  ["/", "search by words, kind:kernel, lane:\"stream 7\", module:layer1, dur>1ms, /expression/; Enter, Shift+Enter: next, previous match"],
  ["P", "pin the track of the selected span to the top, or release it"],
  ["H U", "hide the track of the selected span; show all that are hidden"],
  ["T", "fold, unfold the track of the selected span"],
  ["right click on a lane", "pin, hide, fold it; show only lanes of its name"],
  ["L", "filter the lanes"],
  ["C E V", "critical path, idle reasons, arrows of the selected span: show or hide"],
  ["] [", "follow the arrow that leaves the selected span, that arrives there"],
  ["Shift+]", "the whole chain of arrows of the selected span: show or hide"],
  ["Shift+click", "measure from the selected span to this one"],
  ["K Shift+K", "mark the selected span, or the middle, which the link keeps; go to the marks"],
  ["Y, Ctrl+C", "copy the link, what is known of the selected span"],
  ["Page Up, Page Down", "lanes above, below"],
  ["arrows, Enter, Backspace", "flame graph: to the next box, into it, out again"],
  ["Alt+Left, Alt+Right", "back, forward in zooms"],
  ["Esc", "close, then deselect"],
];

function Help() {
  useEffect(() => document.getElementById("help-close")?.focus(), []);
  return (
    <div class="shade" onClick={() => (help.value = false)}>
      <div class="help" role="dialog" aria-modal="true" aria-label="Keys" onClick={(event) => event.stopPropagation()}>
        <h2>Keys</h2>
        <dl>{HELP.map(([key, what]) => <div key={key}><dt>{key}</dt><dd>{what}</dd></div>)}</dl>
        <button id="help-close" onClick={() => (help.value = false)}>Close (Esc)</button>
      </div>
    </div>
  );
}
