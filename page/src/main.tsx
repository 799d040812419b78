// The page: finds its data, then shows them.

import { render } from "preact";
import { App } from "./app";
import { fromFile, fromServer } from "./source";
import { content, failure, link, listed, source } from "./state";

async function start(): Promise<void> {
  const element = document.getElementById("data");
  const found = element ? await fromFile(element) : fromServer();
  source.value = found;
  const rank = link.value["rank"];
  const first = await found.content(rank === undefined ? undefined : Number(rank));
  if ("runs" in first) listed.value = first.runs;
  else content.value = first;
  document.title = "stepscope";
}

const root = document.getElementById("page");
if (root) {
  render(<App />, root);
  start().catch((error: unknown) => (failure.value = error instanceof Error ? error.message : String(error)));
}
