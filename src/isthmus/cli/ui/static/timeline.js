// Calls and failures of the last hour, and what changed meanwhile, of all or of what is selected.

import { h, htm, uPlot, useEffect, useRef, useState } from "./vendor.js";
import { ask, plain } from "./stream.js";
import { GLYPHS, clock, localTimes } from "./select.js";

const html = htm.bind(h);
const EVERY = 5000; // ms
const HEIGHT = 110;

export function Timeline({ view, selection }) {
  const [data, setData] = useState(null);
  const query = JSON.stringify({ service: selection.service, cluster: selection.service ? "" : selection.cluster });
  useEffect(() => {
    let over = false;
    let timer;
    const again = async () => {
      try {
        const next = await ask("timeline", JSON.parse(query));
        if (!over) setData(next);
      } catch {
        // the header says that the server does not answer; what is drawn stays as of then
      }
      if (!over) timer = setTimeout(again, EVERY);
    };
    again();
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, [query]);
  const title = plain(selection.service) || (selection.cluster && view.clusters.get(selection.cluster)?.name) || "all services";
  const failed = data ? data.failed.reduce((sum, each) => sum + each * data.step, 0) : 0;
  return html`
    <section class="timeline" aria-label="The last hour">
      <h2>Last hour: ${title} <span class="dim">${data ? `counted since ${clock(data.began)}; nothing earlier is known` : ""}</span></h2>
      ${data && html`<${Plot} data=${data} />
        <p class="spoken">${Math.round(failed)} calls failed; ${data.marks.length} changes</p>
        <ol class="marks" tabindex="0" aria-label="Changes, newest first">
          ${[...data.marks].reverse().map((each) => html`<li class=${each.level}><time>${clock(each.time)}</time> ${GLYPHS[each.level]} ${localTimes(each.text)}</li>`)}
          ${data.marks.length === 0 && html`<li>No change since then.</li>`}
        </ol>`}
    </section>
  `;
}

const HOUR = 3600; // s
const LEAST = 600; // s that are drawn, also where less is known

const first = ({ began, now }) => Math.max(now - HOUR, Math.min(began - 60, now - LEAST));

function Plot({ data }) {
  const place = useRef(null);
  const plot = useRef(null);
  const latest = useRef(null);
  latest.current = data;
  useEffect(() => {
    const make = () => {
      plot.current?.destroy();
      plot.current = new uPlot(options(place.current, latest), series(latest.current), place.current);
    };
    make();
    const observer = new ResizeObserver(() => plot.current.setSize({ width: place.current.clientWidth, height: HEIGHT }));
    observer.observe(place.current);
    addEventListener("themechange", make);
    return () => {
      removeEventListener("themechange", make);
      observer.disconnect();
      plot.current.destroy();
    };
  }, []);
  useEffect(() => plot.current.setData(series(data)), [data]);
  return html`<div class="plot" ref=${place} role="img" aria-label="Calls and failed calls a second over the last hour"></div>`;
}

const series = (data) => [data.times, data.calls, data.failed];

function options(element, latest) {
  const style = getComputedStyle(element);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const axis = { stroke: colour("dim"), grid: { stroke: colour("frame"), width: 0.5 }, ticks: { show: false } };
  const stepped = uPlot.paths.stepped({ align: 1 });
  return {
    width: element.clientWidth,
    height: HEIGHT,
    legend: { show: false },
    cursor: { drag: { x: false, y: false } },
    scales: { x: { range: () => [first(latest.current), latest.current.now] }, y: { range: (_, least, most) => [0, Math.max(1, most * 1.1)] } },
    axes: [{ ...axis, size: 28, values: (_, ticks) => ticks.map((each) => clock(each).slice(0, 5)) }, { ...axis, size: 44, values: (_, ticks) => ticks.map((each) => `${each}/s`) }],
    series: [{}, { stroke: colour("call"), width: 1.5, fill: `${colour("call")}33`, paths: stepped }, { stroke: colour("failing"), width: 2, fill: `${colour("failing")}55`, paths: stepped }],
    hooks: {
      drawClear: [
        // What is not known is grey: before the page's server began, nothing was counted.
        (drawn) => {
          const end = Math.min(drawn.bbox.left + drawn.bbox.width, drawn.valToPos(latest.current.began, "x", true));
          drawn.ctx.fillStyle = `${colour("unknown")}22`;
          drawn.ctx.fillRect(drawn.bbox.left, drawn.bbox.top, Math.max(0, end - drawn.bbox.left), drawn.bbox.height);
        },
      ],
      draw: [
        (drawn) => {
          for (const mark of latest.current.marks) {
            const x = drawn.valToPos(mark.time, "x", true);
            drawn.ctx.strokeStyle = colour(mark.level);
            drawn.ctx.lineWidth = 2;
            drawn.ctx.beginPath();
            drawn.ctx.moveTo(x, drawn.bbox.top);
            drawn.ctx.lineTo(x, drawn.bbox.top + drawn.bbox.height);
            drawn.ctx.stroke();
          }
        },
      ],
    },
  };
}
