// The page: header, map or table, the panel of what is selected, and the last hour.

import { h, htm, render, useEffect, useMemo, useRef, useState } from "./vendor.js";
import { Panel } from "./panel.js";
import { Picture } from "./map.js";
import { Table } from "./table.js";
import { Timeline } from "./timeline.js";
import { GLYPHS, clock, fromFragment, namespaceOf, rateText, selected, toFragment } from "./select.js";
import { emptyView, follow, plain, setToken, takeToken } from "./stream.js";

const html = htm.bind(h);
const THEMES = { "": "as the system", dark: "dark", light: "light" };

function App() {
  const [view, setView] = useState(emptyView);
  const [lost, setLost] = useState("connecting");
  const [selection, select] = useFragment();
  const shown = useMemo(() => selected(view, selection), [view, selection.q, selection.in, selection.ns, selection.bad]);
  useEffect(() => {
    follow(setView, setLost);
  }, []);
  if (lost === "refused") return html`<${Login} />`;
  const choose = (what) => select({ ...selection, ...what });
  return html`
    <a class="skip" href="#panel" onClick=${skip}>Skip to what is wrong</a>
    <${Header} view=${view} lost=${lost} selection=${selection} choose=${choose} />
    ${lost && view.now > 0 && html`<p class="lost" role="alert">Not live: ${lost}. Shown as of ${clock(view.now)}.</p>`}
    <main class=${lost ? "outdated" : ""}>
      <section class="stage" aria-label=${selection.view === "map" ? "Map" : "Table"}>
        ${view.now === 0
          ? html`<p class="waiting">Waiting for the first answers …</p>`
          : selection.view === "map"
            ? html`<${Map_} shown=${shown} view=${view} selection=${selection} choose=${choose} />`
            : html`<${Table} shown=${shown} view=${view} selection=${selection} choose=${choose} />`}
        <${Timeline} view=${view} selection=${selection} />
      </section>
      <${Panel} view=${view} selection=${selection} choose=${choose} />
    </main>
  `;
}

function skip(event) {
  event.preventDefault();
  document.getElementById("panel")?.focus();
}

function useFragment() {
  const [selection, set] = useState(() => fromFragment(location.hash));
  useEffect(() => {
    const changed = () => set(fromFragment(location.hash));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return [
    selection,
    (next) => {
      history.replaceState(null, "", toFragment(next));
      set(next);
    },
  ];
}

function Login() {
  const submit = (event) => {
    event.preventDefault();
    setToken(event.target.elements.url.value);
    location.reload();
  };
  return html`
    <form class="login" onSubmit=${submit}>
      <h1>Isthmus</h1>
      <p>This page has no token, or an old one. Open the URL that <code>isthmus ui</code> printed, or paste it:</p>
      <label>URL <input name="url" type="password" autocomplete="off" required /></label>
      <button>Open</button>
    </form>
  `;
}

function Header({ view, lost, selection, choose }) {
  const summary = view.summary.get("all") ?? { level: "unknown", problems: 0, rate: 0, failed: 0, clusters: 0, services: 0, uncounted: [] };
  const level = lost ? "unknown" : summary.level;
  const namespaces = [...new Set([...view.services.keys()].map(namespaceOf))].sort();
  const words = { ok: "all is well", unknown: "not everything is known", degraded: "something is wrong", failing: "something fails" };
  return html`
    <header>
      <h1>Isthmus</h1>
      <p class="summary" role="status">
        <strong class=${`pill ${level}`}>${GLYPHS[level]} ${words[level]}</strong>
        <span>${count(summary.clusters, "cluster")}, ${count(summary.services, "service")}</span>
        <span>${rateText(summary.rate)} calls, <b class=${summary.failed ? "failing" : ""}>${rateText(summary.failed)} fail</b></span>
        ${summary.uncounted.length > 0 && html`<span class="unknown">calls of ${summary.uncounted.slice(0, 4).join(", ")}${summary.uncounted.length > 4 ? " …" : ""} are unknown</span>`}
        <span class="live">${lost ? `not live` : "live"}</span>
      </p>
      <form role="search" onSubmit=${(event) => event.preventDefault()}>
        <input type="search" aria-label="Search services and clusters" placeholder="Search" value=${selection.q} onInput=${(event) => choose({ q: event.target.value })} />
        <label>Cluster
          <select value=${selection.in} onChange=${(event) => choose({ in: event.target.value })}>
            <option value="">all</option>
            ${[...view.clusters.values()].map((each) => html`<option value=${each.id}>${each.name}</option>`)}
          </select>
        </label>
        <label>Namespace
          <select value=${selection.ns} onChange=${(event) => choose({ ns: event.target.value })}>
            <option value="">all</option>
            ${namespaces.map((each) => html`<option value=${each}>${plain(each)}</option>`)}
          </select>
        </label>
        <label><input type="checkbox" checked=${Boolean(selection.bad)} onChange=${(event) => choose({ bad: event.target.checked ? "1" : "" })} /> only what is wrong</label>
        <span role="group" aria-label="View">
          ${["map", "table"].map((each) => html`<button type="button" aria-pressed=${selection.view === each} onClick=${() => choose({ view: each })}>${each === "map" ? "Map" : "Table"}</button>`)}
        </span>
        <${Theme} />
      </form>
    </header>
  `;
}

const count = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;

function Theme() {
  const [theme, set] = useState(() => localStorage.getItem("isthmus-theme") ?? "");
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
    localStorage.setItem("isthmus-theme", theme);
    dispatchEvent(new Event("themechange"));
  }, [theme]);
  const next = { "": "dark", dark: "light", light: "" }[theme] ?? "";
  return html`<button type="button" onClick=${() => set(next)} aria-label=${`Colours: ${THEMES[theme]}; change to ${THEMES[next]}`}>◐ ${THEMES[theme]}</button>`;
}

function Map_({ shown, view, selection, choose }) {
  const canvas = useRef(null);
  const picture = useRef(null);
  const [spoken, speak] = useState("");
  const [drawn, setDrawn] = useState({ edges: 0, drawn: 0 });
  const latest = useRef(null);
  latest.current = choose;
  useEffect(() => {
    picture.current = new Picture(canvas.current, {
      onPick: (what) => latest.current({ ...what, tab: "overview" }),
      onFocus: speak,
      onDrawn: (stats) => {
        canvas.current && Object.assign(canvas.current.dataset, { took: stats.took.toFixed(1), nodes: stats.nodes, edges: stats.edges });
        setDrawn((before) => (before.edges === stats.edges && before.drawn === stats.drawn ? before : stats));
      },
    });
    const again = () => {
      picture.current.stale = true;
      picture.current.draw();
    };
    const dark = matchMedia("(prefers-color-scheme: dark)");
    addEventListener("themechange", again);
    dark.addEventListener("change", again);
    globalThis.isthmusPicture = picture.current; // tests and people look at it
    return () => {
      removeEventListener("themechange", again);
      dark.removeEventListener("change", again);
      picture.current.close();
    };
  }, []);
  useEffect(() => {
    picture.current.show(shown.clusters, shown.services, [...view.edges.values()], selection);
  }, [shown, view.edges, selection.service, selection.cluster]);
  const failing = shown.clusters.filter((each) => each.level !== "ok").map((each) => each.name);
  const label = `Map of ${shown.clusters.length} clusters and ${shown.services.length} services; ${failing.length ? `not well: ${failing.join(", ")}` : "all clusters are well"}. Arrow keys move, Enter opens, plus and minus zoom, 0 shows all. The table has the same as text.`;
  return html`
    <div class="map">
      <canvas ref=${canvas} tabindex="0" role="application" aria-label=${label}></canvas>
      <p class="spoken" aria-live="polite">${spoken}</p>
      <div class="tools" role="group" aria-label="Zoom">
        <button onClick=${() => picture.current.zoom(1.25, canvas.current.clientWidth / 2, canvas.current.clientHeight / 2)} aria-label="Zoom in">+</button>
        <button onClick=${() => picture.current.zoom(0.8, canvas.current.clientWidth / 2, canvas.current.clientHeight / 2)} aria-label="Zoom out">−</button>
        <button onClick=${() => picture.current.fit()} aria-label="Show all">⤢</button>
      </div>
      <p class="legend">
        <span><i class="line"></i> calls; wider: more</span><span><i class="line degraded"></i> moved to another backend</span><span><i class="line failing"></i> failed</span>
        ${drawn.edges > drawn.drawn && html`<span>${drawn.drawn} of ${drawn.edges} kinds of calls are drawn: filter for the others</span>`}
        ${shown.services.length === 0 && html`<span>no service matches</span>`}
      </p>
    </div>
  `;
}

takeToken();
render(html`<${App} />`, document.getElementById("app"));
