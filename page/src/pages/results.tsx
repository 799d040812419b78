// A page that is one or several results as tables.

import { useEffect, useRef, useState } from "preact/hooks";
import type { Frame, Page, Result } from "../model";
import { link, source } from "../state";
import { Table } from "../table";

export function Results({ content, page }: { content: Frame; page: Page }) {
  return (
    <>
      <h1>{page.title}</h1>
      <AllResults content={content} page={page} />
    </>
  );
}

/** All results of a page as tables, and which are left out. */
export function AllResults({ content, page }: { content: Frame; page: Page }) {
  const { results, leftOut = [] } = page;
  return (
    <>
      {results.map((name) => <OneResult key={name} content={content} name={name} />)}
      {leftOut.length > 0 && <p class="muted">Left out of this file, for the run is large: {leftOut.join(", ")}. <code>stepscope view</code> shows {leftOut.length === 1 ? "it" : "them"}.</p>}
    </>
  );
}

export function useResult(content: Frame, name: string): Result | string | null {
  const [found, setFound] = useState<Result | string | null>(content.results[name] ?? null);
  useEffect(() => {
    let current = true;
    if (content.results[name]) setFound(content.results[name]!);
    else
      source.peek()?.result(content.rank, name).then((result) => current && setFound(result), (error: unknown) => current && setFound(String(error)));
    return () => void (current = false);
  }, [content.results, content.rank, name]);
  return found;
}

/** A result as a table, nothing of one without rows; the one that the link names is scrolled to, with its filter. */
export function OneResult({ content, name }: { content: Frame; name: string }) {
  const found = useResult(content, name);
  const head = useRef<HTMLHeadingElement>(null);
  const [named] = useState(() => link.peek()["r"] === name);
  useEffect(() => {
    if (named && found !== null) head.current?.scrollIntoView();
  }, [named, found]);
  if (found === null) return <p class="muted pending">reading {name} …</p>;
  if (typeof found === "string") return <p class="error">{found}</p>;
  if (!found.rows) return null;
  return (
    <>
      <h2 ref={head}>{name} <span class="muted">{found.title}</span></h2>
      <Table label={name} columns={found.columns} of={found.of} />
    </>
  );
}
