// The parts of a page's content that take long: a server computes one when a page that shows it is opened.

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { shown } from "./format";
import type { Content, Findings, FlameTree, PartName, Summary } from "./model";
import { content as current, source } from "./state";

interface Parts {
  summary: Summary;
  findings: Findings;
  flame: FlameTree;
}

const KEYS: { [name in keyof Parts]: keyof Parts[name] } = { summary: "steps", findings: "findings", flame: "flame" };

export function has<Name extends keyof Parts>(content: Content, name: Name): content is Content & Parts[Name] {
  return KEYS[name] in content;
}

/** Ask for a part, and show it if the page still shows the same rank. */
export async function complete(content: Content, part: PartName): Promise<void> {
  const found = await source.peek()!.part(content.rank, part);
  const now = current.peek();
  if (now && "timeline" in now && now.rank === content.rank && now.timeline === content.timeline) current.value = { ...now, ...found };
}

/** Stands where a part will be, and asks for it. */
export function Asked({ content, part, children }: { content: Content; part: PartName; children: ComponentChildren }) {
  const [problem, setProblem] = useState("");
  useEffect(() => void complete(content, part).catch((error: unknown) => setProblem(String(error))), [content.timeline, part]);
  return problem ? <p class="error">{shown(problem, 400)}</p> : <p class="muted pending">{children}</p>;
}
