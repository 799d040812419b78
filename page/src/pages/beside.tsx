// Two runs side by side: each has its own rows, both have one window, which counts from the start of a step of each.

import { useEffect, useState } from "preact/hooks";
import { duration, shown } from "../format";
import type { Content, Timeline as Times } from "../model";
import { fromServer, type Source } from "../source";
import { go, help, link, theme, toggleTheme } from "../state";
import { Timeline } from "../timeline/view";
import type { Range, Side } from "../timeline/window";

interface Run {
  place: number;
  from: Source;
  content: Content;
  of: Times;
}

/** The places of two runs of the list, if the link names two. */
export function placesOf(text: string | undefined, runs: number): [number, number] | null {
  const [a, b] = (text ?? "").split(",").map(Number);
  const is = (place: number | undefined): place is number => place !== undefined && Number.isInteger(place) && place >= 0 && place < runs;
  return is(a) && is(b) ? [a, b] : null;
}

async function read(place: number): Promise<Run> {
  const from = fromServer(`${place}/`);
  const content = await from.content();
  if (!("timeline" in content)) throw new Error("This is not a run.");
  if (!content.timeline) throw new Error(`${content.title} has no spans.`);
  return { place, from, content, of: content.timeline };
}

export function Beside({ places }: { places: [number, number] }) {
  const [runs, setRuns] = useState<Run[] | null>(null);
  const [problem, setProblem] = useState("");
  const [active, setActive] = useState(0);
  useEffect(() => {
    setRuns(null);
    Promise.all(places.map(read)).then(setRuns, (error: unknown) => setProblem(error instanceof Error ? error.message : String(error)));
  }, [places.join()]);
  if (problem) return <main class="alone" id="main"><h1>stepscope</h1><p class="error">{shown(problem, 1000)}</p></main>;
  if (!runs) return <main class="alone" id="main"><h1>stepscope</h1><p>reading …</p></main>;
  const chosen = runs.map((run, i) => stepOf(run.of, (link.value["steps"] ?? "").split(",")[i]));
  return (
    <>
      <header>
        <span class="brand">stepscope</span>
        <a href="#" onClick={(event) => { event.preventDefault(); go({ beside: null, steps: null, t: null, sel0: null, sel1: null }, true); }}>all runs</a>
        <span class="muted">two runs, one window: both begin with the chosen step</span>
        <span class="fill" />
        <button onClick={toggleTheme} aria-label={`change to ${theme.value === "dark" ? "light" : "dark"} colours`}>{theme.value === "dark" ? "light" : "dark"}</button>
        <button onClick={() => (help.value = true)} aria-label="keys">?</button>
      </header>
      <main class="wide beside" id="main" tabIndex={0}>
        {runs.map((run, i) => (
          <section key={`${i} ${run.place}`} aria-label={`run ${"AB"[i]}`} data-active={active === i} onPointerDownCapture={() => setActive(i)} onFocusCapture={() => setActive(i)}>
            <h2><b>{"AB"[i]}</b> <a href={`${run.place}/`}>{shown(run.content.title, 80)}</a> <Steps run={run} at={chosen[i]!} choose={(number) => go({ steps: chosen.map((one, k) => (k === i ? number : one?.number ?? "")).join(), t: null })} /></h2>
            <Timeline content={run.content} from={run.from} side={sideOf(runs, chosen, i, active)} />
          </section>
        ))}
      </main>
    </>
  );
}

type Step = Times["steps"][number];

/** The step of a number, else the median one; of a run without steps none. */
function stepOf(of: Times, number: string | undefined): Step | undefined {
  return of.steps.find((step) => String(step.number) === number) ?? of.steps.find((step) => step.start === of.focus[0]);
}

function Steps({ run, at, choose }: { run: Run; at: Step | undefined; choose: (number: number) => void }) {
  if (!at) return <span class="muted">no step was found: it begins with its first span</span>;
  return (
    <>
      <label>step <select value={String(at.number)} onChange={(event) => choose(Number(event.currentTarget.value))}>{run.of.steps.map((step) => <option key={step.number} value={String(step.number)}>{step.number}</option>)}</select></label>
      {" "}<span class="muted">{duration(at.dur)}</span>
    </>
  );
}

/** Where a run lies in the common window: its times, from the first of both runs to the last of both. */
function sideOf(runs: Run[], chosen: (Step | undefined)[], i: number, active: number): Side {
  const at = runs.map((run, k) => chosen[k]?.start ?? run.of.begin);
  const own = at[i]!;
  const begin = Math.min(...runs.map((run, k) => run.of.begin - at[k]!));
  const end = Math.max(...runs.map((run, k) => run.of.end - at[k]!));
  const longest = Math.max(...runs.map((run, k) => chosen[k]?.dur ?? run.of.end - run.of.begin));
  const all: Range = [begin + own, end + own];
  return { place: i, at: own, all, focus: [own, own + longest], active: i === active };
}
