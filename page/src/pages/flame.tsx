// Flame graph of the recorded steps: time order does not matter here, the widest comes first (left heavy).

import { useEffect, useMemo, useState } from "preact/hooks";
import { useWidth } from "../charts";
import { colourOf, labelOn } from "../colours";
import { count, duration, percent, shown } from "../format";
import type { Content, FlameNode, FlameTree } from "../model";
import { Asked, has } from "../parts";
import { theme } from "../state";

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
  content: Content;
  laid: Box[];
  matches: Set<number> | null;
  over: Box | null;
}

function draw(element: HTMLCanvasElement, width: number, height: number, { content, laid, matches, over }: Drawing): void {
  const context = element.getContext("2d", { willReadFrequently: true });
  if (!context) return;
  const kinds = content.timeline?.kinds ?? [];
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
    context.fillText(shown(name(content, box.node), 120), box.x + 4, box.depth * ROW + ROW / 2);
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

function Graph({ content }: { content: Known }) {
  const [path, setPath] = useState<FlameNode[]>([]);
  const [find, setFind] = useState("");
  const [over, setOver] = useState<Box | null>(null);
  const [canvas, width] = useWidth<HTMLCanvasElement>();
  const root = path[path.length - 1] ?? content.flame;
  const laid = useMemo(() => (root ? boxes(root, width) : []), [root, width]);
  const height = (laid.reduce((most, box) => Math.max(most, box.depth), 0) + 1) * ROW;
  const matches = useMemo(() => (find ? new Set(content.names.flatMap((text, i) => (text.toLowerCase().includes(find.toLowerCase()) ? [i] : []))) : null), [find, content]);
  useEffect(() => {
    if (canvas.current) draw(canvas.current, width, height, { content, laid, matches, over });
  }, [laid, width, height, matches, over, theme.value]);

  if (!content.flame || !root) return <p>No spans to add up.</p>;
  const into = (box: Box | null | undefined): void => void (box && box.node !== root && (setPath([...path, box.node]), setOver(null)));
  const key = (event: KeyboardEvent): void => {
    const box = over ?? laid[0];
    if (box && /^Arrow/.test(event.key)) setOver(beside(laid, box, event.key) ?? box);
    else if (event.key === "Enter") into(over);
    else if (event.key === "Backspace") setPath(path.slice(0, -1));
    else return;
    event.preventDefault();
  };
  const at = ({ offsetX: x, offsetY: y }: MouseEvent): Box | null => laid.find((box) => box.depth === Math.floor(y / ROW) && x >= box.x && x < box.x + box.width) ?? null;
  const told = over?.node ?? root;
  return (
    <>
      <h1>Flame graph <span class="muted">of the recorded steps; the widest comes first</span></h1>
      <div class="tools">
        <input type="search" placeholder="find a name" aria-label="find a name" value={find} onInput={(event) => setFind(event.currentTarget.value)} />
        <button disabled={!path.length} onClick={() => setPath(path.slice(0, -1))}>up</button>
        <button disabled={!path.length} onClick={() => setPath([])}>all</button>
        <span role="status">{shown(name(content, told), 120)} · {duration(told.value)} · {percent(told.value / Math.max(1, content.flame.value))} · self {duration(told.self)} · {count(told.count)} ×</span>
      </div>
      <canvas ref={canvas} class="flame" tabIndex={0} role="img" aria-label="Flame graph; the table below lists the same"
        onMouseMove={(event) => setOver(at(event))} onMouseLeave={() => setOver(null)}
        onClick={(event) => into(at(event))} onKeyDown={key} style={{ height: `${height}px` }} />
      <Sums content={content} root={root} />
    </>
  );
}

const name = (content: Content, node: FlameNode): string => (node.name < 0 ? "all" : content.names[node.name] ?? "");

function Sums({ content, root }: { content: Content; root: FlameNode }) {
  const rows = useMemo(() => {
    const found = new Map<number, { self: number; count: number; total: number }>();
    const visit = (node: FlameNode, around: Set<number>): void => {
      const sum = found.get(node.name) ?? { self: 0, count: 0, total: 0 };
      sum.self += node.self;
      sum.count += node.count;
      const outermost = !around.has(node.name);
      if (outermost) sum.total += node.value;
      found.set(node.name, sum);
      if (outermost) around.add(node.name);
      for (const child of node.children) visit(child, around);
      if (outermost) around.delete(node.name);
    };
    visit(root, new Set());
    return [...found].filter(([key]) => key >= 0).sort((a, b) => b[1].self - a[1].self).slice(0, 40);
  }, [root]);
  return (
    <table class="simple"><thead><tr><th scope="col">name</th><th scope="col" class="number">self</th><th scope="col" class="number">total</th><th scope="col" class="number">calls</th></tr></thead>
      <tbody>{rows.map(([key, sum]) => <tr key={key}><td class="name">{shown(content.names[key] ?? "", 120)}</td><td class="number">{duration(sum.self)}</td><td class="number">{duration(sum.total)}</td><td class="number">{count(sum.count)}</td></tr>)}</tbody></table>
  );
}
