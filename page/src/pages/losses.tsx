// What was dropped, cut or repaired, and where the numbers come from.

import { count, shown } from "../format";
import type { Content } from "../model";

export function Losses({ content }: { content: Content }) {
  return (
    <>
      <h1>Losses and provenance</h1>
      {content.losses.length === 0 && <p>{content.totalsCompared ? "Nothing was lost: checked against the capture's own totals." : "No loss is known. The capture states no totals to check against."}</p>}
      {content.losses.length > 0 && (
        <table class="simple lost">
          <thead><tr><th scope="col">what</th><th scope="col" class="number">count</th><th scope="col">severity</th><th scope="col">source</th><th scope="col">what to do</th></tr></thead>
          <tbody>{content.losses.map((loss, i) => <tr key={i} class={loss.severity}><td>{shown(loss.what)}</td><td class="number">{count(loss.count)}</td><td>{loss.severity.replace("_", " ")}</td><td>{shown(loss.source, 80)}</td><td>{shown(loss.advice, 400)}</td></tr>)}</tbody>
        </table>
      )}
      <h2>Where this comes from</h2>
      <table class="simple facts of-run"><tbody>{content.provenance.map(([name, value], i) => <tr key={i}><th scope="row">{shown(name)}</th><td>{shown(value.replace(/\s+/g, " "), 400)}</td></tr>)}</tbody></table>
    </>
  );
}
