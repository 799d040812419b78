// When the ranks of a job are read.

import { useEffect, useRef, useState } from "preact/hooks";
import type { Api } from "./api";

/** Of a job of at most so many ranks all are read; of a larger one, those that come into view. */
const READ_ALL = 16;

interface Reading {
  /** The ranks in view, from the top. */
  here: number[];
  /** Whether overlays are shown. */
  over: boolean;
  told: (rank: number) => void;
  setProblem: (text: string) => void;
}

/**
 * Reads ranks of a server, and what is drawn over those in view. One is read after the other, from the top: its lanes may
 * push those below out of view, which are not read then.
 */
export function useReading(api: Api, { here, over, told, setProblem }: Reading): void {
  const { ranks, of } = api;
  const busy = useRef(false);
  const [done, setDone] = useState(0);
  const wanted = of.ranks.length > READ_ALL ? here : [...here, ...of.ranks.map((row) => row.rank)];
  const absent = new Set(of.ranks.filter((row) => row.absent).map((row) => row.rank));
  const next = api.source.live ? wanted.find((rank) => !ranks.known.has(rank) && !ranks.failed.has(rank) && !absent.has(rank)) : undefined;
  useEffect(() => {
    if (next === undefined || busy.current) return;
    busy.current = true;
    void api.read(next).then((why) => {
      busy.current = false;
      if (why) ranks.failed.set(next, why);
      told(next);
      setDone(done + 1);
    });
  }, [api, next, done]);
  const bare = over ? here.filter((rank) => ranks.known.get(rank)?.overlays === false) : [];
  useEffect(() => {
    for (const rank of bare) void api.overlays(rank).then(() => told(rank), (error: unknown) => setProblem(String(error)));
  }, [api, bare.join()]);
}
