// The verdict first, then the numbers behind it; each leads to the page that proves it.

import type { ComponentChildren } from "preact";
import { partColour } from "../colours";
import { Stacks } from "../charts";
import { bytes, count, duration, percent, shown } from "../format";
import type { Content, Summary } from "../model";
import { Asked, has } from "../parts";
import { open, theme } from "../state";
import { OneFinding } from "./findings";
import { openStep, RunLine, StepLines } from "./steps";
import { Top } from "./top";

export function Overview({ content }: { content: Content }) {
  const timeline = content.pages.some((one) => one.name === "timeline" && !one.absent);
  return (
    <>
      <div class="verdict"><h1 class={has(content, "findings") && content.verdict.length > 150 ? "long" : ""}>{has(content, "findings") ? shown(content.verdict, 400) : <span class="muted">looking for what makes it slow …</span>}</h1>{timeline && <button class="go" onClick={() => open("timeline")}>Open the timeline</button>}</div>
      {has(content, "summary") ? <Figures content={content} /> : <Asked content={content} part="summary">reading the steps …</Asked>}
    </>
  );
}

function Figures({ content }: { content: Content & Summary }) {
  const { steps } = content;
  const fourth = content.split.map((part) => part.share).sort((a, b) => b - a)[3] ?? 0;
  const peak = [...content.memoryPeak].sort((a, b) => Number(b.allocated ?? b.reserved ?? 0) - Number(a.allocated ?? a.reserved ?? 0))[0];
  const to = (name: string): string => (content.pages.some((one) => one.name === name && !one.absent && !one.pending) ? name : "");
  const found = has(content, "findings") ? content.findings : null;
  const most = (
    <>
      {content.kernels.length > 0 && <Top title="Kernels, by device time" entries={content.kernels.slice(0, 8)} steps={steps.count} to={to("kernels")} />}
      {content.operators.length > 0 && <Top title="Operators, by self time on the host" entries={content.operators.slice(0, 8)} steps={steps.count} to={to("operators")} />}
    </>
  );
  return (
    <>
      <div class="tiles">
        <Tile name={steps.count > 1 ? "median step" : steps.count ? "step" : "recording"} value={duration(steps.count ? steps.p50_ns : content.split.length ? content.split.reduce((sum, part) => sum + part.total_ns, 0) : (content.timeline?.total ?? null))} note={steps.count > 1 ? `${duration(steps.shortest_ns)} – ${duration(steps.longest_ns)}` : ""} to={to("steps")} />
        {steps.of_device[1] !== undefined && <Tile name="median step of the device" value={duration(steps.of_device[1])} note="the host runs ahead" to={to("steps")} />}
        <Tile name={steps.count === 1 ? "step recorded" : "steps recorded"} value={count(steps.count)} note={content.run.number.length > steps.count ? `of ${count(content.run.number.length)}` : steps.inferred ? "inferred" : ""} to={to("steps")} />
        {content.split.filter((part) => part.share > 0.0005 && part.share >= fourth).map((part) => <Tile key={part.name} name={part.name} value={percent(part.share)} note={`${duration(part.mean_ns)}${steps.count ? " a step" : ""}`} to={to("steps")} />)}
        {peak && <Tile name={`memory peak ${peak.device}`} value={bytes(peak.allocated ?? peak.reserved)} note={peak.reserved === null ? "" : `${bytes(peak.reserved)} reserved`} to={to("memory")} />}
      </div>
      <div class="halves">
        <div>
          <section aria-label="Where the steps go">
            <h2>Where the steps go</h2>
            {!content.timeline ? <p class="muted">There is nothing to add up. To record a training: <code>stepscope run train.py</code></p> : content.perStep.length ? <Stacks label="Parts of each step" numbers={content.stepNumbers} parts={content.perStep} onStep={to("timeline") ? (i) => openStep(content, i) : undefined!} /> : content.split.some((part) => part.share > 0) ? <Shares parts={content.split} label="parts of the recording" /> : <p class="muted">The source does not say what the parts of a step are.</p>}
            {content.phases.length > 0 && <Shares parts={content.phases} label="phases of the mean step" />}
            {steps.count > 1 && content.stepLines && <><h2>Steps, line by line</h2><StepLines content={content} most={6} /></>}
            {content.run.number.length > steps.count && <><h2>All {count(content.run.number.length)} steps of the run</h2><RunLine run={content.run} /></>}
          </section>
          {found && found.length > 0 && most}
        </div>
        {!has(content, "findings") && <Asked content={content} part="findings">looking for what would make it shorter …</Asked>}
        {has(content, "findings") && (content.findings.length > 0 ? (
          <section aria-label="Findings">
            <h2>What would make it shorter</h2>
            {content.findings.map((finding, i) => <OneFinding key={i} number={i + 1} finding={finding} content={content} />)}
          </section>
        ) : <div>{most}</div>)}
      </div>
    </>
  );
}

function Tile({ name, value, note, to }: { name: string; value: string; note: string; to: string }) {
  const inside: ComponentChildren = <><b>{value}</b><span>{shown(name, 40)}</span><small>{note}</small></>;
  return to ? <button class="tile" onClick={() => open(to)}>{inside}</button> : <div class="tile">{inside}</div>;
}

function Shares({ parts, label }: { parts: { name: string; mean_ns: number; share: number }[]; label: string }) {
  const there = parts.filter((part) => part.share > 0);
  return (
    <div class="shares" role="img" aria-label={`${label}: ${there.map((part) => `${part.name} ${percent(part.share)}`).join(", ")}`}>
      <div class="strip">{there.map((part) => <i key={part.name} style={{ flexGrow: String(part.share), background: partColour(part.name, theme.value) }} />)}</div>
      <p>{there.map((part) => <span key={part.name}><i style={{ background: partColour(part.name, theme.value) }} />{part.name} {duration(part.mean_ns)} · {percent(part.share)}</span>)}</p>
    </div>
  );
}
