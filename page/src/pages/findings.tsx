// One finding: what it saves, what to change, how we know; each piece of evidence leads to where it was seen.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { duration, percent, shown } from "../format";
import type { Content, Evidence, Finding, Findings, Summary } from "../model";
import { copy, open } from "../state";

/** What reads as code in a sentence: text between backquotes, calls with their arguments, options, settings. */
const CODE = /`[^`]+`|@?\.?[A-Za-z_][\w.]*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)(?:\.\w+\([^()]*\))*|\b[A-Za-z_][\w.]*=[\w./"'-]*[\w"']|(?<!\S)--[a-z][\w-]*/g;

type Told = Content & Summary & Findings;

export function OneFinding({ number, finding, content }: { number: number; finding: Finding; content: Told }) {
  // The page begins with the title of the first finding; its change is told here, as in the terminal.
  const above = content.verdict.replace(/\.$/, "") === finding.title.replace(/\.$/, "");
  const remedy = shown(finding.remedy, 2000);
  return (
    <details class="finding" open={number === 1}>
      <summary><b>{number}</b> {above ? inCode(remedy) : shown(finding.title, 300)} <Gain finding={finding} content={content} /></summary>
      {!above && <p>{inCode(remedy)}</p>}
      <ul>{finding.evidence.map((one, i) => <li key={i}>{shown(one.text, 400)} <Where one={one} content={content} /></li>)}</ul>
      <div class="tools">
        <Copy text={(remedy.match(CODE) ?? [remedy]).map((code) => code.replaceAll("`", "")).join("\n")} what="copy the change" />
        {finding.check && <Copy text={finding.check} what="copy the check" />}
      </div>
      {finding.check && <p class="muted">check: <code>{shown(finding.check, 300)}</code></p>}
      <p class="muted">{finding.basis && `${shown(finding.basis, 600)} · `}cause <code>{shown(finding.cause, 80)}</code>{finding.confidence && ` · ${shown(finding.confidence, 20)}`}</p>
    </details>
  );
}

/** What a finding saves a step: the interval, its share of the step as text and as a bar. */
function Gain({ finding, content }: { finding: Finding; content: Told }) {
  const { gain_ns: gain } = finding;
  if (gain === undefined) return null;
  const low = finding.gain_low_ns ?? gain;
  const high = finding.gain_high_ns ?? gain;
  const step = finding.step_ns ?? content.steps.mean_ns;
  const text = duration(low) === duration(high) ? duration(gain) : `${duration(low)} – ${duration(high)}`;
  const part = (ns: number): string => `${Math.min(100, (100 * ns) / step)}%`;
  return (
    <span class="gain">saves {text}{step ? ` of ${duration(step)} (${percent(gain / step)})` : " a step"}
      {step > 0 && <span class="saving" aria-hidden="true"><i style={{ width: part(high) }} /><i style={{ width: part(low) }} /></span>}
    </span>
  );
}

function Where({ one, content }: { one: Evidence; content: Content }) {
  const page = content.pages.find((found) => one.result && !found.absent && !found.pending && found.results.includes(one.result));
  const timeline = content.pages.some((found) => found.name === "timeline" && !found.absent);
  const { start_ns: start, end_ns: end, result, source, operator } = one;
  return (
    <>
      {source && <code>{shown(source, 200)} </code>}
      {page && result && <Link onClick={() => open(page.name, { r: result, f: operator ?? null })}>{result}</Link>}
      {timeline && start !== undefined && end !== undefined && end > start
        ? <Link onClick={() => open("timeline", { t: `${start},${end}`, sel: null })}>timeline</Link>
        : timeline && operator && content.names.includes(operator) && <Link onClick={() => open("timeline", { q: operator, sel: null })}>timeline</Link>}
    </>
  );
}

function Link({ onClick, children }: { onClick: () => void; children: ComponentChildren }) {
  return <button class="quiet inline" onClick={onClick}>{children}</button>;
}

function Copy({ text, what }: { text: string; what: string }) {
  const [done, setDone] = useState(false);
  return <button onClick={() => void copy(text).then(setDone)}>{done ? "copied" : what}</button>;
}

/** A sentence with its code set as code. */
export function inCode(text: string): ComponentChildren {
  const found: ComponentChildren[] = [];
  let from = 0;
  for (const match of text.matchAll(CODE)) {
    found.push(text.slice(from, match.index), <code key={match.index}>{match[0].replaceAll("`", "")}</code>);
    from = match.index + match[0].length;
  }
  return [...found, text.slice(from)];
}
