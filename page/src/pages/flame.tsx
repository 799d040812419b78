// Flame graph of the recorded steps, in three orders: the widest first (left heavy), by the first call, or around one name
// with its callers above and what it calls below (sandwich).

import { useEffect, useMemo, useState } from "preact/hooks";
import { useWidth } from "../charts";
import { colourOf, groupOf, labelOn } from "../colours";
import { count, duration, percent, shown } from "../format";
import type { Content, FlameNode, FlameTree } from "../model";
import { Asked, has } from "../parts";
import { go, link, theme } from "../state";
import { around, byTime, only, sums } from "./flame_orders";

const ROW = 20;

interface Box {
  node: FlameNode;
  x: number;
  width: number;
  depth: number;
}

function boxes(root: FlameNode, width: number): Box[] {
  const found: Box[] = [];
  const place = (node: FlameNode, x: number, wide: number, depth: number): void => {
    if (wide < 0.6) return;
    found.push({ node, x, width: wide, depth });
    let left = x;
    for (const child of node.children) {
      const part = (wide * child.value) / Math.max(1, node.value);
      place(child, left, part, depth + 1);
      left += part;
    }
  };
  place(root, 0, width, 0);
  return found;
}

/** What is drawn: the boxes, the names that match what is searched (null for all), and the box that is told. */
interface Drawing {
  names: string[];
  kinds: string[];
  laid: Box[];
  matches: Set<number> | null;
  over: Box | null;
}

function draw(element: HTMLCanvasElement, width: number, height: number, { names, kinds, laid, matches, over }: Drawing): void {
  const context = element.getContext("2d", { willReadFrequently: true });
  if (!context) return;
  const scale = Math.min(2, devicePixelRatio || 1);
  element.width = width * scale;
  element.height = height * scale;
  context.scale(scale, scale);
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  for (const box of laid) {
    const colour = colourOf(kinds[box.node.kind] ?? "operator", theme.value);
    context.globalAlpha = matches && !matches.has(box.node.name) ? 0.25 : 1;
    context.fillStyle = colour;
    context.fillRect(box.x, box.depth * ROW, Math.max(0.6, box.width - 1), ROW - 1);
    if (over === box) {
      context.strokeStyle = labelOn(colour);
      context.lineWidth = 2;
      context.strokeRect(box.x + 1, box.depth * ROW + 1, Math.max(1, box.width - 3), ROW - 3);
    }
    if (box.width <= 30) continue;
    context.fillStyle = labelOn(colour);
    context.save();
    context.beginPath();
    context.rect(box.x, box.depth * ROW, box.width - 4, ROW);
    context.clip();
    context.fillText(shown(nameOf(names, box.node), 120), box.x + 4, box.depth * ROW + ROW / 2);
    context.restore();
  }
}

/** Where an arrow leads from a box: to its first child, its parent, its neighbours. */
function beside(laid: Box[], box: Box, key: string): Box | undefined {
  const row = laid.filter((one) => one.depth === box.depth);
  if (key === "ArrowDown") return laid.find((one) => box.node.children.includes(one.node));
  if (key === "ArrowUp") return laid.find((one) => one.node.children.includes(box.node));
  return row[row.indexOf(box) + (key === "ArrowLeft" ? -1 : 1)];
}

export function Flame({ content }: { content: Content }) {
  return has(content, "flame") ? <Graph content={content} /> : <><h1>Flame graph</h1><Asked content={content} part="flame">adding up the spans …</Asked></>;
}

type Known = Content & FlameTree;

const ORDERS: [string, string][] = [["", "widest first"], ["time", "by first call"], ["around", "around a name"]];
const KINDS: [string, string, (kind: string) => boolean][] = [
  ["", "all spans", () => true],
  ["python", "Python", (kind) => kind === "python"],
  ["operators", "operators", (kind) => kind === "operator"],
  ["device", "kernels, copies, collectives", (kind) => ["kernel", "memcpy", "memset", "collective"].includes(kind)],
];
const LAUNCHED: (typeof KINDS)[number] = ["launched", "device work below what launched it", () => true];
const SAMPLED: (typeof KINDS)[number] = ["samples", "Python, sampled", () => true];

function Graph({ content }: { content: Known }) {
  const { fo: order = "", fk: of = "", fn: chosen = "", q: find = "" } = link.value;
  const kinds = content.timeline?.kinds ?? [];
  const { flame, sampled, launched } = content;
  const there = useMemo(() => [...KINDS.filter(([key, , is]) => !key || (flame && hasKind(flame, kinds, is))), ...(launched ? [LAUNCHED] : []), ...(sampled ? [SAMPLED] : [])], [flame, launched, sampled]);
  const samples = of === "samples" && sampled;
  const tree = useMemo(() => {
    if (samples) return samples.root;
    const [, , is] = there.find(([key]) => key === of) ?? KINDS[0]!;
    const found = of === "launched" ? launched : flame && of ? only(flame, (node) => is(kinds[node.kind] ?? "")) : flame;
    return found && order === "time" ? byTime(found) : found;
  }, [flame, launched, samples, of, order]);
  if (!tree) return <p>No spans to add up.</p>;
  const names = samples ? samples.names : content.names;
  const code = order === "around" ? names.indexOf(chosen) : -1;
  const sandwich = code >= 0 ? around(tree, code) : null;
  const choose = (name: number): void => go({ fo: "around", fn: names[name] ?? null, at: null }, true);
  const shownOf = { names, kinds, whole: tree.value, find, calls: samples ? "sample" : "call" };
  const orders = samples ? ORDERS.filter(([key]) => key !== "time") : ORDERS;
  return (
    <>
      <h1>Flame graph <span class="muted">{samples ? "of the whole run: Python stacks, sampled" : content.cut ? "of the median and the slowest step" : "of the recorded steps"}; {of === "launched" ? "time of the device, below what launched it" : `all threads${samples ? "" : " and streams"} side by side`}</span></h1>
      <div class="tools">
        <input type="search" placeholder="find a name" aria-label="find a name" value={find} onInput={(event) => go({ q: event.currentTarget.value })} />
        <label>order <select aria-label="order" value={order} onChange={(event) => go({ fo: event.currentTarget.value, at: null }, true)}>{orders.map(([key, text]) => <option key={key} value={key}>{text}</option>)}</select></label>
        {there.length > 2 && <label>of <select aria-label="spans" value={of} onChange={(event) => go({ fk: event.currentTarget.value, at: null }, true)}>{there.map(([key, text]) => <option key={key} value={key}>{text}</option>)}</select></label>}
        {order === "around" && <span class="muted">{code < 0 ? "choose a name in the table" : shown(chosen, 120)}</span>}
      </div>
      {sandwich ? (
        <>
          <h2>Who calls it <span class="muted">its callers lie above it, the outermost at the top</span></h2>
          <Boxes key="callers" {...shownOf} root={sandwich.callers} up part="up" />
          <h2>What it calls</h2>
          <Boxes key="calls" {...shownOf} root={sandwich.calls} part="at" />
        </>
      ) : order !== "around" && <Boxes key={`${order} ${of}`} {...shownOf} root={tree} part="at" />}
      <Sums names={names} kinds={kinds} root={tree} choose={choose} chosen={code} calls={shownOf.calls} />
    </>
  );
}

const hasKind = (node: FlameNode, kinds: string[], is: (kind: string) => boolean): boolean => (node.name >= 0 && is(kinds[node.kind] ?? "")) || node.children.some((child) => hasKind(child, kinds, is));

/** The boxes of a tree; a click opens one, the link holds which. Callers are drawn upwards. */
function Boxes({ names, kinds, root: whole, whole: all, find, up = false, part, calls }: { names: string[]; kinds: string[]; root: FlameNode; whole: number; find: string; up?: boolean; part: string; calls: string }) {
  const [over, setOver] = useState<Box | null>(null);
  const [canvas, width] = useWidth<HTMLCanvasElement>();
  const path = opened(whole, link.value[part]);
  const open = (nodes: FlameNode[]): void => (setOver(null), go({ [part]: nodes.map((node) => node.name).join(".") }, true));
  const root = path[path.length - 1] ?? whole;
  const { laid, height } = useMemo(() => {
    const found = boxes(root, width);
    const deepest = found.reduce((most, box) => Math.max(most, box.depth), 0);
    return { laid: up ? found.map((box) => ({ ...box, depth: deepest - box.depth })) : found, height: (deepest + 1) * ROW };
  }, [root, width, up]);
  const matches = useMemo(() => (find ? new Set(names.flatMap((text, i) => (text.toLowerCase().includes(find.toLowerCase()) ? [i] : []))) : null), [find, names]);
  useEffect(() => {
    if (canvas.current) draw(canvas.current, width, height, { names, kinds, laid, matches, over });
  }, [laid, width, height, matches, over, theme.value]);
  const into = (box: Box | null | undefined): void => void (box && box.node !== root && open([...path, ...pathTo(root, box.node)]));
  const key = (event: KeyboardEvent): void => {
    const box = over ?? laid[0];
    const turned = up ? ({ ArrowUp: "ArrowDown", ArrowDown: "ArrowUp" } as Record<string, string>)[event.key] ?? event.key : event.key;
    if (box && /^Arrow/.test(event.key)) setOver(beside(laid, box, turned) ?? box);
    else if (event.key === "Enter") into(over);
    else if (event.key === "Backspace") open(path.slice(0, -1));
    else return;
    event.preventDefault();
  };
  const at = ({ offsetX: x, offsetY: y }: MouseEvent): Box | null => laid.find((box) => box.depth === Math.floor(y / ROW) && x >= box.x && x < box.x + box.width) ?? null;
  const told = over?.node ?? root;
  return (
    <>
      <div class="tools">
        <button disabled={!path.length} onClick={() => open(path.slice(0, -1))}>up</button>
        <button disabled={!path.length} onClick={() => open([])}>all</button>
        <span role="status">{shown(nameOf(names, told), 120)} · {duration(told.value)} · {percent(told.value / Math.max(1, all))}{told.name >= 0 && <> · self {duration(told.self)} · {count(told.count)} {told.count === 1 ? calls : `${calls}s`}</>}</span>
      </div>
      <canvas ref={canvas} class="flame" tabIndex={0} role="img" aria-label="Flame graph; the table below lists the same"
        onMouseMove={(event) => setOver(at(event))} onMouseLeave={() => setOver(null)}
        onClick={(event) => into(at(event))} onKeyDown={key} style={{ height: `${height}px` }} />
    </>
  );
}

/** The nodes below a root that the link names, one below the other; those that are not there end it. */
function opened(root: FlameNode, text: string | undefined): FlameNode[] {
  const found: FlameNode[] = [];
  for (const code of (text ?? "").split(".").filter(Boolean).map(Number)) {
    const next = (found[found.length - 1] ?? root).children.find((child) => child.name === code);
    if (!next) break;
    found.push(next);
  }
  return found;
}

function pathTo(root: FlameNode, node: FlameNode): FlameNode[] {
  if (root.children.includes(node)) return [node];
  for (const child of root.children) {
    const found = pathTo(child, node);
    if (found.length) return [child, ...found];
  }
  return [];
}

const nameOf = (names: string[], node: FlameNode): string => (node.name < 0 ? "all" : names[node.name] ?? "");

function Sums({ names, kinds, root, choose, chosen, calls }: { names: string[]; kinds: string[]; root: FlameNode; choose: (name: number) => void; chosen: number; calls: string }) {
  const rows = useMemo(() => sums(root).slice(0, 40), [root]);
  return (
    <table class="simple sums"><thead><tr><th scope="col">name</th><th scope="col">kind</th><th scope="col" class="number">self</th><th scope="col" class="number">total</th><th scope="col" class="number">{calls}s</th></tr></thead>
      <tbody>{rows.map((row) => <tr key={row.name} aria-current={row.name === chosen ? "true" : undefined}><td class="name"><i class="swatch" style={{ background: colourOf(kinds[row.kind] ?? "", theme.value) }} /><button class="quiet inline" title="callers and calls of this name" onClick={() => choose(row.name)}>{shown(names[row.name] ?? "", 120)}</button></td><td>{groupOf(kinds[row.kind] ?? "")}</td><td class="number">{duration(row.self)}</td><td class="number">{duration(row.total)}</td><td class="number">{count(row.count)}</td></tr>)}</tbody></table>
  );
}
