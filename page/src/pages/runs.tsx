// The runs of a directory, the newest first; each leads to its pages.

import { useState } from "preact/hooks";
import { count, DASH, shown } from "../format";
import type { Listed } from "../model";
import { go } from "../state";

export function Runs({ runs }: { runs: Listed[] }) {
  const [chosen, setChosen] = useState<number[]>([]);
  return (
    <main class="alone" id="main">
      <h1>{count(runs.length)} runs</h1>
      {runs.length > 1 && <div class="tools"><button disabled={chosen.length !== 2} onClick={() => go({ beside: chosen.join() }, true)}>side by side</button><span class="muted">the timelines of two runs, with one window</span></div>}
      <table class="simple">
        <thead><tr><th scope="col"><span class="hidden">chosen</span></th><th scope="col">run</th><th scope="col">machine</th><th scope="col" class="number">ranks</th><th scope="col" class="number">steps recorded</th><th scope="col">status</th></tr></thead>
        <tbody>{runs.map((run, place) => (
          <tr key={place}><td><input type="checkbox" aria-label={`choose ${shown(run.name, 80)}`} checked={chosen.includes(place)} onChange={() => setChosen(chosen.includes(place) ? chosen.filter((one) => one !== place) : [...chosen, place].slice(-2))} /></td><td><a href={`${place}/`}>{shown(run.name)}</a></td><td>{run.host ? shown(run.host, 80) : DASH}</td><td class="number">{count(run.ranks)}</td>
            <td class="number">{typeof run.steps === "number" ? count(run.steps) : DASH}</td><td>{shown(run.status ?? DASH, 300)}</td></tr>
        ))}</tbody>
      </table>
    </main>
  );
}
