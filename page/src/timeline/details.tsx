// Below the lanes: all that is known of the selected span, what belongs to it, and the sums of a range.

import { useEffect, useState } from "preact/hooks";
import { colourOf, isOverlay, overlayColour, type Theme } from "../colours";
import { count, duration, shown } from "../format";
import type { Timeline as Times } from "../model";
import { theme } from "../state";
import type { Api, Arrow, Chained, Facts, Selected, Statistic } from "./api";
import { chainText } from "./selection";

export const inkOf = (kinds: string[], kind: number, of: Theme): string => (isOverlay(kinds, kind) ? overlayColour(kinds[kind] ?? "", of) : colourOf(kinds[kind] ?? "", of));

interface Given {
  api: Api;
  of: Times;
  facts: Facts | null;
  measured: Selected | null;
  chain: Chained[] | null;
  range: [number, number] | null;
  lanes: number[];
  a: number;
  b: number;
  select: (span: Selected | null, show?: boolean) => void;
}

export function Details({ api, of, facts, measured, chain, range, lanes, a, b, select }: Given) {
  const [statistic, setStatistic] = useState<Statistic[]>([]);
  const [from, to] = range ?? [a, b];
  const key = `${from},${to},${lanes.join()}`;
  useEffect(() => {
    let current = true;
    const timer = setTimeout(() => void api.range(lanes, from, to).then((found) => current && setStatistic(found)), 120);
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [api, key]);
  return (
    <div class="details">
      <section aria-label="Span">
        <h2>Span</h2>
        {!facts && <p class="muted">Click a span, or search for one.</p>}
        {facts && (
          <>
            <p class="title"><i style={{ background: inkOf(of.kinds, facts.span.kind, theme.value) }} />{shown(api.name(facts.span.name), 400)}</p>
            <dl>
              {of.ranks.length > 1 && <div><dt>rank</dt><dd>{facts.span.rank}</dd></div>}
              {facts.facts.map(([name, value]) => <div key={name}><dt>{shown(name, 60)}</dt><dd>{shown(value, 2000)}</dd></div>)}
            </dl>
            {measured && <Measured api={api} of={of} one={facts.span} other={measured} />}
            {chain && <p class="measured">{chain.length ? `its chain: ${chainText(chain)}` : "no arrow leaves or reaches this span"}</p>}
            <Belongs api={api} facts={facts} select={select} />
          </>
        )}
      </section>
      <section aria-label="Range">
        <h2>{range ? "Range" : "Window"} <span class="muted">{duration(to - from)} from {duration(from)}, lanes in view</span></h2>
        <div class="scroll" tabIndex={0} role="region" aria-label="names in the range">
          <table class="simple"><thead><tr><th scope="col">name</th><th scope="col" class="number">sum</th><th scope="col" class="number">self</th><th scope="col" class="number">count</th><th scope="col" class="number">mean</th><th scope="col" class="number">least</th><th scope="col" class="number">most</th></tr></thead>
            <tbody>{statistic.slice(0, 60).map((row) => <tr key={row.name}><td class="name">{shown(api.name(row.name), 90)}</td><td class="number">{duration(row.total)}</td><td class="number">{duration(row.self)}</td><td class="number">{count(row.count)}</td><td class="number">{duration(row.total / row.count)}</td><td class="number">{duration(row.least)}</td><td class="number">{duration(row.most)}</td></tr>)}</tbody></table>
        </div>
      </section>
    </div>
  );
}

/** From the selected span to one that was clicked with Shift. */
function Measured({ api, of, one, other }: { api: Api; of: Times; one: Selected; other: Selected }) {
  const [first, second] = one.start <= other.start ? [one, other] : [other, one];
  const gap = second.start - first.start - first.dur;
  const unsure = one.rank === other.rank ? null : of.ranks.filter((row) => row.rank === one.rank || row.rank === other.rank);
  const known = unsure?.every((row) => row.uncertainty !== null);
  return (
    <p class="measured">
      to {shown(api.name(other.name), 90)}{one.rank !== other.rank ? ` on rank ${other.rank}` : ""}: start to start <b>{duration(second.start - first.start)}</b>, {gap >= 0 ? "gap" : "overlap"} <b>{duration(Math.abs(gap))}</b>, it takes <b>{duration(other.dur)}</b>
      {unsure && <span class="muted"> {known ? `± ${duration(unsure.reduce((sum, row) => sum + (row.uncertainty ?? 0), 0))}: the clocks` : "the clocks of these ranks are not aligned"}</span>}
    </p>
  );
}

const SAID: Record<string, [leaves: string, arrives: string]> = {
  launch: ["launches", "launched by"], forward_backward: ["its backward", "its forward"], send_receive: ["received as", "sent as"],
  wait: ["awaited by", "waits for"], other: ["leads to", "comes from"],
};

function Belongs({ api, facts, select }: { api: Api; facts: Facts; select: (span: Selected | null, show?: boolean) => void }) {
  const said = (arrow: Arrow): string => (SAID[arrow.kind] ?? SAID["other"]!)[arrow.leaves ? 0 : 1];
  const one = (span: Selected, before: string, i: number) => (
    <li key={i}>{before && <span class="muted">{before} </span>}<button class="quiet inline" onClick={() => select(span, true)}>{shown(api.name(span.name), 90)}</button> <span class="number">{duration(span.dur)}</span></li>
  );
  return (
    <>
      {facts.flows.length > 0 && <ul class="belongs" aria-label="arrows">{facts.flows.slice(0, 20).map((arrow, i) => one(arrow.span, said(arrow), i))}{facts.flows.length > 20 && <li class="muted">{count(facts.flows.length - 20)} more</li>}</ul>}
      {facts.kernels && (
        <>
          <h3>Launched inside it <span class="muted">{count(facts.kernels.count)} {facts.kernels.count === 1 ? "piece" : "pieces"} of device work, {duration(facts.kernels.total)}{facts.kernels.count > facts.kernels.longest.length ? `; the ${facts.kernels.longest.length} longest` : ""}</span></h3>
          <ul class="belongs kernels" aria-label="kernels">{facts.kernels.longest.map((span, i) => one(span, "", i))}</ul>
        </>
      )}
    </>
  );
}
