// What a flame graph can be turned into: some kinds of spans only, by time, around one name; and its sums by name.

import type { FlameNode } from "../model";

const widest = (one: FlameNode, other: FlameNode): number => other.value - one.value;

/** Nodes of the same name and kind as one, with all that lies in them. */
export function merged(nodes: FlameNode[]): FlameNode[] {
  const found = new Map<string, { node: FlameNode; inner: FlameNode[] }>();
  for (const node of nodes) {
    const key = `${node.name} ${node.kind}`;
    const known = found.get(key);
    if (!known) {
      found.set(key, { node: { ...node }, inner: [...node.children] });
      continue;
    }
    const { node: sum, inner } = known;
    Object.assign(sum, { value: sum.value + node.value, self: sum.self + node.self, count: sum.count + node.count, at: Math.min(sum.at, node.at) });
    inner.push(...node.children);
  }
  return [...found.values()].map(({ node, inner }) => ({ ...node, children: merged(inner) })).sort(widest);
}

/** The tree of some of its nodes: what lies in another takes its place, whose time without it is its own. */
export function only(root: FlameNode, is: (node: FlameNode) => boolean): FlameNode {
  const kept = (node: FlameNode): FlameNode[] => {
    const inner = node.children.flatMap(kept);
    if (!is(node)) return inner;
    return [{ ...node, self: node.value - inner.reduce((sum, one) => sum + one.value, 0), children: inner }];
  };
  const children = merged(root.children.flatMap(kept));
  return { ...root, value: children.reduce((sum, one) => sum + one.value, 0), children };
}

/** The same tree, what is called first on the left. */
export function byTime(root: FlameNode): FlameNode {
  return { ...root, children: [...root.children].sort((one, other) => one.at - other.at).map(byTime) };
}

/** Who calls a name, and what it calls: its outermost nodes as one, with their callers from the inside out. */
export function around(root: FlameNode, name: number): { callers: FlameNode; calls: FlameNode } | null {
  const found: FlameNode[] = [];
  const chains: FlameNode[] = [];
  const visit = (node: FlameNode, above: FlameNode[]): void => {
    if (node.name !== name) {
      for (const child of node.children) visit(child, [...above, node]);
      return;
    }
    found.push(node);
    // Each caller has the time of the calls that lead to the name, and none of its own.
    const chain = above.slice(1).reduce<FlameNode[]>((inner, one) => [{ ...one, value: node.value, self: 0, count: node.count, children: inner }], []);
    chains.push({ ...node, children: chain });
  };
  visit(root, []);
  const alike = (nodes: FlameNode[]): FlameNode[] => nodes.map((node) => ({ ...node, kind: found[0]!.kind }));
  const [calls, callers] = [merged(alike(found))[0], merged(alike(chains))[0]];
  return calls && callers ? { calls, callers } : null;
}

export interface Sum {
  name: number;
  kind: number;
  self: number;
  total: number;
  count: number;
}

/** By name: self time, the time of its outermost calls, and calls; most self time first. */
export function sums(root: FlameNode): Sum[] {
  const found = new Map<number, Sum>();
  const visit = (node: FlameNode, above: Set<number>): void => {
    const sum = found.get(node.name) ?? { name: node.name, kind: node.kind, self: 0, count: 0, total: 0 };
    sum.self += node.self;
    sum.count += node.count;
    const outermost = !above.has(node.name);
    if (outermost) sum.total += node.value;
    found.set(node.name, sum);
    if (outermost) above.add(node.name);
    for (const child of node.children) visit(child, above);
    if (outermost) above.delete(node.name);
  };
  visit(root, new Set());
  return [...found.values()].filter((sum) => sum.name >= 0).sort((one, other) => other.self - one.self);
}
