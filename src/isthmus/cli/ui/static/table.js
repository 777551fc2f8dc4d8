// The same as the map, as tables: for screen readers, for many services, and for copying.

import { h, htm, useState } from "./vendor.js";
import { cellText } from "./map.js";
import { GLYPHS, WORDS, localTimes, networkName, rank, rateText } from "./select.js";

const html = htm.bind(h);
const PAGE = 200;

export function Table({ shown, view, selection, choose }) {
  const [rows, setRows] = useState(PAGE);
  const services = [...shown.services].sort((a, b) => rank(b.level) - rank(a.level) || (a.id < b.id ? -1 : 1));
  const open = (service, cluster) => (event) => {
    event.preventDefault();
    choose({ service, cluster, tab: "overview" });
  };
  return html`
    <div class="tables" tabindex="0" role="region" aria-label="Clusters and services as tables">
      <table>
        <caption>Clusters</caption>
        <thead><tr><th scope="col">Cluster</th><th scope="col">State</th><th scope="col">Place</th><th scope="col">Network</th><th scope="col">Why</th></tr></thead>
        <tbody>
          ${shown.clusters.map((each) => html`
            <tr key=${each.id} aria-selected=${selection.cluster === each.id}>
              <th scope="row"><button class="link" onClick=${open("", each.id)}>${each.name}</button></th>
              <td class=${each.level}>${GLYPHS[each.level]} ${WORDS[each.level]}</td>
              <td>${[each.region, each.zone].filter(Boolean).join(" / ")}</td>
              <td>${networkName(each)}${each.gateways.length ? `, ${each.gateways.length} gateways` : ""}</td>
              <td>${each.why.map((why) => html`<div>${localTimes(why)}</div>`)}</td>
            </tr>`)}
        </tbody>
      </table>
      <table>
        <caption>Services</caption>
        <thead><tr><th scope="col">Service</th><th scope="col">State</th><th scope="col">Calls</th><th scope="col">Failed</th>
          ${shown.clusters.map((each) => html`<th scope="col" key=${each.id}>${each.name}</th>`)}<th scope="col">Why</th></tr></thead>
        <tbody>
          ${services.slice(0, rows).map((each) => html`
            <tr key=${each.id} aria-selected=${selection.service === each.id}>
              <th scope="row"><button class="link" onClick=${open(each.id, "")}>${each.name}</button></th>
              <td class=${each.level}>${GLYPHS[each.level]} ${WORDS[each.level]}</td>
              <td class="number">${rateText(each.rate)}</td>
              <td class=${`number ${each.failed ? "failing" : ""}`}>${rateText(each.failed)}</td>
              ${shown.clusters.map((cluster) => {
                const cell = each.cells[cluster.id];
                return cell ? html`<td key=${cluster.id} class=${cell.level}>${GLYPHS[cell.level]} ${cellText(cell)}</td>` : html`<td key=${cluster.id}></td>`;
              })}
              <td>${each.why.slice(0, 3).map((why) => html`<div>${localTimes(why)}</div>`)}</td>
            </tr>`)}
        </tbody>
      </table>
      ${services.length > rows && html`<button onClick=${() => setRows(rows + PAGE)}>Show more: ${services.length - rows} are left</button>`}
      ${services.length === 0 && html`<p>No service matches.</p>`}
    </div>
  `;
}
