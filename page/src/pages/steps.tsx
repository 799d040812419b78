// Every step of the run, and the recorded ones line by line.

import { Lines, Stacks } from "../charts";
import { partColour } from "../colours";
import { count, duration } from "../format";
import type { Content, Page, RunSteps, Summary } from "../model";
import { Asked, has } from "../parts";
import { open, theme } from "../state";
import { AllResults } from "./results";

export function openStep(content: Content, index: number): void {
  const step = content.timeline?.steps[index];
  if (step) open("timeline", { t: `${step.start},${step.start + step.dur}`, sel: null });
}

export function RunLine({ run }: { run: RunSteps }) {
  if (run.number.length < 3) return null;
  const events = run.contains.flatMap((text, i) => (text ? [{ x: run.number[i]!, text: `step ${run.number[i]}: ${text}` }] : []));
  return <Lines label="Time of every step of the run" lines={[{ name: "time of a step", x: run.number, y: run.dur }]} format={duration} cut marks={events} x={(value) => `step ${Math.round(value)}`} />;
}

export function Steps({ content, page }: { content: Content; page: Page }) {
  return (
    <>
      <h1>Steps</h1>
      {has(content, "summary") ? <Recorded content={content} /> : <Asked content={content} part="summary">reading the steps …</Asked>}
      <AllResults content={content} page={page} />
    </>
  );
}

/** Steps below each other, each from its beginning on: where they differ is seen at a glance. */
export function StepLines({ content, most = Infinity }: { content: Content & Summary; most?: number }) {
  if (!content.stepLines) return null;
  const { parts, piece, pieces, lines } = content.stepLines;
  const every = Math.max(1, Math.ceil(lines.length / most));
  const used = parts.filter((_, i) => lines.some((line) => line.runs.some(([part]) => part === i)));
  return (
    <figure class="steplines">
      {lines.filter((_, i) => i % every === 0).map(({ step, runs }) => (
        <button key={step} class="quiet" aria-label={`step ${content.stepNumbers[step] ?? step} in the timeline`} onClick={() => openStep(content, step)}>
          <span class="number">{content.stepNumbers[step] ?? step}</span>
          <span class="strip">{runs.map(([part, length], i) => <i key={i} title={`${parts[part]}, ${duration(piece * runs.slice(0, i).reduce((sum, run) => sum + run[1], 0))} after the step began`} style={{ width: `${(100 * length) / pieces}%`, background: partColour(parts[part]!, theme.value) }} />)}</span>
        </button>
      ))}
      <figcaption>
        {used.map((name) => <span key={name}><i style={{ background: partColour(name, theme.value) }} />{name}</span>)}
        <span class="muted">from 0 to {duration(piece * pieces)} after each step began; a piece of {duration(piece)} has the part that takes most of it</span>
      </figcaption>
    </figure>
  );
}

function Recorded({ content }: { content: Content & Summary }) {
  return (
    <>
      {content.run.number.length > 2 && <><h2>All {count(content.run.number.length)} steps of the run</h2><RunLine run={content.run} /></>}
      {content.perStep.length > 0 && <><h2>Recorded steps, by what they do</h2><Stacks label="Parts of each step" numbers={content.stepNumbers} parts={content.perStep} onStep={(i) => openStep(content, i)} /></>}
      {content.stepLines && <><h2>Recorded steps, line by line</h2><StepLines content={content} /></>}
      {content.perPhase.length > 0 && <><h2>Recorded steps, by phase</h2><Stacks label="Phases of each step" numbers={content.stepNumbers} parts={content.perPhase} onStep={(i) => openStep(content, i)} /></>}
    </>
  );
}
