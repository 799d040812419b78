// Every step of the run, and the recorded ones line by line.

import { Lines, Stacks } from "../charts";
import { count, duration } from "../format";
import type { Content, Page, RunSteps, Summary } from "../model";
import { Asked, has } from "../parts";
import { open } from "../state";
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

function Recorded({ content }: { content: Content & Summary }) {
  return (
    <>
      {content.run.number.length > 2 && <><h2>All {count(content.run.number.length)} steps of the run</h2><RunLine run={content.run} /></>}
      {content.perStep.length > 0 && <><h2>Recorded steps, by what they do</h2><Stacks label="Parts of each step" numbers={content.stepNumbers} parts={content.perStep} onStep={(i) => openStep(content, i)} /></>}
      {content.perPhase.length > 0 && <><h2>Recorded steps, by phase</h2><Stacks label="Phases of each step" numbers={content.stepNumbers} parts={content.perPhase} onStep={(i) => openStep(content, i)} /></>}
    </>
  );
}
