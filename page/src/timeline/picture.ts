// The picture of the lanes: a worker draws it on a canvas. Of a server it is the file worker.js, of one file a text in it.

import { useEffect, useRef, useState } from "preact/hooks";
import type { Api } from "./api";
import type { FromWorker, ToWorker, View } from "./messages";

/** Where the spans of the picture are. */
export type Hits = Extract<FromWorker, { what: "hits" }>;

export interface Picture {
  holder: { current: HTMLDivElement | null };
  hits: { current: Hits | null };
  /** Look where the spans of the latest view are, once that is known. */
  look: (at: (hits: Hits) => void) => void;
  width: number;
  /** Say how lanes, names and times of a rank are numbered. */
  tell: (rank: number) => void;
  draw: (view: Omit<View, "number">) => void;
}

/** The picture, for as long as the timeline is shown. */
export function usePicture(api: Api, setProblem: (text: string) => void): Picture {
  const [width, setWidth] = useState(900);
  const holder = useRef<HTMLDivElement>(null);
  const hits = useRef<Hits | null>(null);
  const worker = useRef<Worker | null>(null);
  const asked = useRef(0);
  const looks = useRef<{ view: number; at: (hits: Hits) => void } | null>(null);
  const post = (message: ToWorker): void => worker.current?.postMessage(message);
  const tell = (rank: number): void => {
    const { shift, slope, codes, lanes } = api.ranks.known.get(rank)!;
    post({ what: "rank", rank, shift, slope, codes, lanes });
  };
  useEffect(() => {
    const element = holder.current;
    if (!element) return undefined;
    const canvas = document.createElement("canvas");
    canvas.className = "lanes";
    element.append(canvas);
    const made = (worker.current = started(api, canvas));
    made.onmessage = ({ data: message }: MessageEvent<FromWorker>) => {
      if (message.what === "hits") {
        hits.current = message;
        const look = looks.current;
        if (!look || message.view < look.view) return;
        looks.current = null;
        look.at(message);
      } else if (message.what === "names") void api.names(message.codes).then((names) => post({ what: "names", names }));
      else if (message.what === "failed") setProblem(message.message);
      else if (!message.stale) {
        element.dataset["drawn"] = String(Number(element.dataset["drawn"] ?? 0) + 1);
        element.dataset["ms"] = message.ms.toFixed(1);
        setProblem("");
      }
    };
    for (const rank of api.ranks.known.keys()) tell(rank);
    const watch = new ResizeObserver(() => setWidth(Math.max(200, element.clientWidth)));
    watch.observe(element);
    return () => {
      watch.disconnect();
      made.terminate();
      canvas.remove();
    };
  }, [api]);
  const draw = (view: Omit<View, "number">): void => {
    post({ what: "view", view: { ...view, number: ++asked.current } });
    const canvas = holder.current?.querySelector("canvas");
    if (!canvas) return;
    canvas.style.width = `${view.width}px`;
    canvas.style.height = `${view.height}px`;
  };
  const look = (at: (hits: Hits) => void): void => {
    if (hits.current?.view === asked.current) at(hits.current);
    else looks.current = { view: asked.current, at };
  };
  return { holder, hits, look, width, tell, draw };
}

function started(api: Api, canvas: HTMLCanvasElement): Worker {
  const made = startWorker();
  const offscreen = canvas.transferControlToOffscreen();
  const { live, token, columns } = api.source;
  const base = live ? new URL(api.source.base || ".", location.href).href : "";
  const open: ToWorker = { what: "open", canvas: offscreen, token, base, columns, edges: api.edges, kinds: api.of.kinds };
  made.postMessage(open, [offscreen]);
  return made;
}

function startWorker(): Worker {
  const text = document.getElementById("worker")?.textContent;
  const policy = trustedTypes();
  if (!text) return new Worker(policy("worker.js") as string);
  return new Worker(policy(URL.createObjectURL(new Blob([text], { type: "text/javascript" }))) as string);
}

interface Policies {
  createPolicy(name: string, rules: { createScriptURL: (url: string) => string }): { createScriptURL: (url: string) => unknown };
}

let made: ((url: string) => unknown) | null = null;

/** Only our own worker may become a script. */
function trustedTypes(): (url: string) => unknown {
  if (made) return made;
  const policies = (globalThis as unknown as { trustedTypes?: Policies }).trustedTypes;
  const createScriptURL = (url: string): string => {
    if (url !== "worker.js" && !url.startsWith("blob:")) throw new Error("not our worker");
    return url;
  };
  const policy = policies?.createPolicy("stepscope", { createScriptURL });
  made = policy ? (url) => policy.createScriptURL(url) : createScriptURL;
  return made;
}
