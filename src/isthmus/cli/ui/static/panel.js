// What is wrong, or all about the service or cluster that is selected.

import { h, htm, useEffect, useRef, useState } from "./vendor.js";
import { ask, plain } from "./stream.js";
import { GLYPHS, WORDS, clock, localTimes, networkName, rateText } from "./select.js";

const html = htm.bind(h);
const TABS = { overview: "Overview", diagnose: "Diagnose", explain: "Explain", flows: "Flows", events: "Events" };
const HOPS = { ok: "ok", fault: "failing", follows: "unknown" };

export function Panel({ view, selection, choose }) {
  const service = view.services.get(selection.service);
  const cluster = view.clusters.get(selection.cluster);
  const close = () => choose({ service: "", cluster: "" });
  const onKey = (event) => event.key === "Escape" && close();
  return html`
    <aside id="panel" tabindex="-1" aria-label="Details" onKeyDown=${onKey}>
      ${selection.service && !service && html`<p>Nobody knows a service ${plain(selection.service)} any more. <button onClick=${close}>Close</button></p>`}
      ${service
        ? html`<${Service} key=${service.id} service=${service} view=${view} selection=${selection} choose=${choose} close=${close} />`
        : cluster
          ? html`<${Cluster} cluster=${cluster} view=${view} choose=${choose} close=${close} />`
          : html`<${Problems} view=${view} choose=${choose} />`}
    </aside>
  `;
}

function Problems({ view, choose }) {
  const problems = [...view.problems.values()].sort((a, b) => (a.id < b.id ? -1 : 1));
  const summary = view.summary.get("all");
  return html`
    <h2>What is wrong</h2>
    ${problems.length === 0 && summary?.level === "ok" && html`<p class="ok">✓ Nothing that is asked finds anything wrong.</p>`}
    <ol class="problems">
      ${problems.map((each) => html`
        <li key=${each.id} class=${each.level}>
          <button class="link" onClick=${() => choose({ service: each.service, cluster: each.service ? "" : each.cluster, tab: each.service ? "diagnose" : "overview" })}>
            <strong>${GLYPHS[each.level]} ${each.text}</strong>
          </button>
          ${each.why.slice(0, 4).map((why) => html`<p>${localTimes(why)}</p>`)}
          <code>${each.command}</code>
        </li>`)}
    </ol>
    ${summary && summary.problems > problems.length && html`<p>${summary.problems - problems.length} more are not listed.</p>`}
  `;
}

const Head = ({ level, kind, name, close }) => html`
  <div class="head">
    <h2><span class="kind">${kind}</span> ${name} <span class=${`pill ${level}`}>${GLYPHS[level]} ${WORDS[level]}</span></h2>
    <button onClick=${close} aria-label="Close and show what is wrong">✕</button>
  </div>`;

function Cluster({ cluster, view, choose, close }) {
  const processes = [...view.processes.values()].filter((each) => each.cluster === cluster.name);
  const services = [...view.services.values()].filter((each) => each.cells[cluster.id] && each.cells[cluster.id].level !== "ok");
  return html`
    <${Head} level=${cluster.level} kind="Cluster" name=${cluster.name} close=${close} />
    ${cluster.why.map((why) => html`<p class=${cluster.level}>${localTimes(why)}</p>`)}
    <dl>
      <dt>Place</dt><dd>${[cluster.region, cluster.zone].filter(Boolean).join(" / ") || "not stated"}</dd>
      <dt>Network</dt><dd>${networkName(cluster)}</dd>
      <dt>Version</dt><dd>${cluster.version || "unknown, or another implementation"}</dd>
      <dt>Asked here</dt><dd>${cluster.asked ? `${cluster.nodes_asked} of ${cluster.nodes || "?"} nodes` : "no: as others see it"}</dd>
      <dt>Calls of its pods</dt><dd>${cluster.counted ? "counted" : html`<span class="unknown">unknown: not counted, or its agent does not answer</span>`}</dd>
    </dl>
    ${cluster.gateways.length > 0 && html`<h3>Gateways</h3><ul>${cluster.gateways.map((each) => html`<li class=${each.healthy === null ? "unknown" : each.healthy ? "ok" : "failing"}>${each.healthy === null ? "? " : each.healthy ? "✓ " : "✗ "}${each.address}${each.healthy === null ? ": no node that is asked checks it" : ""} ${each.why}</li>`)}</ul>`}
    ${cluster.drains.length > 0 && html`<h3>Drains</h3><ul>${cluster.drains.map((each) => html`<li>${each}</li>`)}</ul>`}
    <h3>As other clusters find it</h3>
    ${cluster.findings.length === 0 && html`<p class="unknown">No other cluster that is asked answers.</p>`}
    <ul>${cluster.findings.map((each) => html`<li class=${each.state === "ready" ? "ok" : "failing"}>${each.by}: ${each.state}${each.since ? localTimes(` since ${each.since}`) : ""} ${localTimes(each.reason)}</li>`)}</ul>
    <h3>Its processes</h3>
    <ul>${processes.map((each) => html`<li class=${each.level}>${GLYPHS[each.level]} ${each.name} ${each.place} ${each.version}${each.error ? html`<p>no answer since ${each.since ? clock(each.since) : "the beginning"}: ${each.error}</p>` : ""}${each.problems.map((why) => html`<p>${localTimes(why)}</p>`)}${each.warnings.map((why) => html`<p class="degraded">${localTimes(why)}</p>`)}</li>`)}</ul>
    ${services.length > 0 && html`<h3>Services that are not well here</h3><ul>${services.slice(0, 50).map((each) => html`<li class=${each.cells[cluster.id].level}><button class="link" onClick=${() => choose({ service: each.id })}>${each.name}</button>: ${each.cells[cluster.id].why.map(localTimes).join("; ")}</li>`)}</ul>`}
  `;
}

function Service({ service, view, selection, choose, close }) {
  const asked = [...view.clusters.values()].filter((each) => each.asked);
  const known = asked.filter((each) => each.id in service.cells);
  const usual = (known.find((each) => service.cells[each.id].imported) ?? known[0] ?? asked[0])?.id ?? "";
  const from = asked.some((each) => each.id === selection.cluster) ? selection.cluster : usual;
  const tabs = Object.keys(TABS);
  const tab = tabs.includes(selection.tab) ? selection.tab : "overview";
  const list = useRef(null);
  const onKey = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const next = tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length];
    choose({ tab: next });
    requestAnimationFrame(() => list.current?.querySelector(`[data-tab=${next}]`)?.focus());
  };
  return html`
    <${Head} level=${service.level} kind="Service" name=${service.name} close=${close} />
    <div role="tablist" aria-label="About the service" ref=${list} onKeyDown=${onKey}>
      ${tabs.map((each) => html`<button role="tab" data-tab=${each} aria-selected=${each === tab} aria-controls="tabpanel" tabindex=${each === tab ? 0 : -1} onClick=${() => choose({ tab: each })}>${TABS[each]}</button>`)}
    </div>
    <div role="tabpanel" id="tabpanel" tabindex="0">
      ${["diagnose", "explain", "events"].includes(tab) && html`
        <label>As cluster <select value=${from} onChange=${(event) => choose({ cluster: event.target.value })}>
          ${asked.map((each) => html`<option value=${each.id}>${each.name}</option>`)}</select> sees it</label>`}
      ${tab === "overview" && html`<${Overview} service=${service} view=${view} />`}
      ${tab === "diagnose" && html`<${Diagnosis} key=${from} service=${service} cluster=${from} />`}
      ${tab === "explain" && html`<${Explanation} key=${from} service=${service} cluster=${from} />`}
      ${tab === "flows" && html`<${Flows} service=${service} view=${view} />`}
      ${tab === "events" && html`<${Events} key=${from} service=${service} cluster=${from} />`}
    </div>
  `;
}

// What the server answers to a question, asked again after some seconds if it is to stay up to date.
function useAnswer(path, query, every = 0) {
  const [answer, set] = useState({ busy: true });
  const text = JSON.stringify(query);
  useEffect(() => {
    let over = false;
    let timer;
    const again = async () => {
      try {
        const value = await ask(path, JSON.parse(text));
        if (!over) set({ value });
      } catch (error) {
        if (!over) set((before) => ({ ...before, busy: false, error: error.message }));
      }
      if (every && !over) timer = setTimeout(again, every);
    };
    again();
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, [path, text]);
  return answer;
}

const Waiting = ({ answer, what }) => html`
  ${answer.busy && html`<p role="status">${what} …</p>`}
  ${answer.error && html`<p class="unknown" role="alert">Unknown: ${answer.error}</p>`}`;

function Overview({ service, view }) {
  const answer = useAnswer("service", { name: service.id }, 3000);
  const calls = [...view.edges.values()].filter((each) => each.service === service.id);
  return html`
    ${service.why.map((why) => html`<p class=${service.level}>${localTimes(why)}</p>`)}
    <h3>Calls now</h3>
    ${calls.length === 0 && html`<p>None counted in the last seconds.</p>`}
    <ul>${calls.map((each) => html`<li class=${each.failed ? "failing" : ""}>${each.source} → ${each.target || "nobody"}: ${rateText(each.rate)}${each.failed ? `, ${rateText(each.failed)} fail` : ""}${each.moved ? `, ${rateText(each.moved)} moved` : ""}</li>`)}</ul>
    <h3>Policies and routes</h3>
    ${service.policies.length === 0 ? html`<p>None: all backends are called alike.</p>` : html`<ul>${service.policies.map((each) => html`<li>${each}</li>`)}</ul>`}
    <${Waiting} answer=${answer} what="Asking for backends" />
    ${answer.value && html`
      <h3>Where calls go by the plan</h3>
      <ul>${answer.value.shares.map((each) => html`<li>${each.by}, ${each.port}: ${Object.keys(each.shares).length ? Object.entries(each.shares).map(([name, part]) => `${plain(name)} ${Math.round(part * 1000) / 10}%`).join(", ") : html`<b class="failing">nobody: calls are refused</b>`}</li>`)}</ul>
      <h3>Backends</h3>
      <table>
        <thead><tr><th scope="col">Cluster</th><th scope="col">Address</th><th scope="col">State</th><th scope="col">Pod, node</th></tr></thead>
        <tbody>${answer.value.backends.map((each) => html`
          <tr key=${`${each.cluster} ${each.address}`}>
            <td>${each.cluster}</td><td>${each.address} ${each.ports.join(" ")}</td>
            <td class=${["ready"].includes(each.state) ? "ok" : ["draining", "terminating", "drained"].includes(each.state) ? "unknown" : "failing"}>${each.state}${each.why.map((why) => html`<div>${localTimes(why)}</div>`)}</td>
            <td>${each.pod}${each.count > 1 ? ` ${each.count} endpoints` : ""} ${each.node}</td>
          </tr>`)}</tbody>
      </table>`}
  `;
}

function Diagnosis({ service, cluster }) {
  const answer = useAnswer("diagnose", { name: service.id, cluster });
  const value = answer.value;
  return html`
    <${Waiting} answer=${answer} what="Walking the path of a call" />
    ${value && html`
      <p><code>${value.command}</code></p>
      ${value.error && html`<pre>${value.error}</pre>`}
      <ol class="hops">${[...value.hops].sort((a, b) => (b.state === "fault") - (a.state === "fault")).map((hop) => html`
        <li class=${HOPS[hop.state] ?? "unknown"}>
          <strong>${GLYPHS[HOPS[hop.state]] ?? "?"} ${hop.hop}</strong> ${hop.object}: ${localTimes(hop.text)}
          ${hop.state === "fault" && hop.cure && html`<p>→ <code>${hop.cure}</code></p>`}
        </li>`)}</ol>`}
  `;
}

function Explanation({ service, cluster }) {
  const answer = useAnswer("explain", { name: service.id, cluster });
  return html`
    <${Waiting} answer=${answer} what="Asking the planner" />
    ${answer.value && html`<p><code>${answer.value.command}</code></p><pre>${answer.value.text}</pre>`}
  `;
}

function Flows({ service, view }) {
  const answer = useAnswer("service", { name: service.id }, 2000);
  const value = answer.value;
  const failed = (each) => ["refused", "lost", "failed", "denied"].includes(each.verdict) || each.state === "given up";
  const end = (each) => `${each.cluster} ${each.gateways.length ? `by gateway ${each.gateways[0]}` : each.address}`.trim();
  return html`
    <${Waiting} answer=${answer} what="Asking for calls" />
    ${value && Object.entries(value.flows_off).map(([name, why]) => html`<p class="unknown">${plain(name)}: ${why}</p>`)}
    ${value && value.flows.length === 0 && html`<p>No call of it is remembered.</p>`}
    ${value && value.flows.length > 0 && html`
      <table>
        <thead><tr><th scope="col">Time</th><th scope="col">Pod</th><th scope="col">Asked</th><th scope="col">Answered</th><th scope="col">Outcome</th></tr></thead>
        <tbody>${value.flows.map((each) => html`
          <tr key=${`${each.node} ${each.id} ${each.state}`}>
            <td>${clock(each.time + each.took)}</td><td>${each.pod || each.source}</td><td>${end(each.asked)}</td>
            <td>${end(each.answered) === end(each.asked) ? "" : end(each.answered)}</td>
            <td class=${failed(each) ? "failing" : ["rescued", "ejected"].includes(each.verdict) ? "degraded" : ""}>${each.verdict}, ${each.state}${each.reason ? `: ${each.reason}` : ""}</td>
          </tr>`)}</tbody>
      </table>`}
  `;
}

function Events({ service, cluster }) {
  const answer = useAnswer("events", { name: service.id, cluster }, 10000);
  const value = answer.value;
  return html`
    <${Waiting} answer=${answer} what="Asking the API server" />
    ${value?.error && html`<p class="unknown">Unknown: ${value.error}</p>`}
    ${value && !value.error && value.events.length === 0 && html`<p>The API server has none about it.</p>`}
    <ul>${(value?.events ?? []).map((each) => html`<li class=${each.type === "Warning" ? "degraded" : ""}>${localTimes(each.time)} <strong>${each.reason}</strong> ${each.object}${each.count > 1 ? ` (${each.count} times)` : ""}<p>${localTimes(each.message)}</p></li>`)}</ul>
  `;
}
