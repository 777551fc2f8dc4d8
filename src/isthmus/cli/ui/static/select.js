// Which part of the view is shown, as the fragment of the URL has it: whoever opens that URL sees the same.

const DEFAULTS = { view: "map", q: "", in: "", ns: "", bad: "", service: "", cluster: "", tab: "overview" };

export function fromFragment(fragment) {
  const given = new URLSearchParams(fragment.replace(/^#/, ""));
  return Object.fromEntries(Object.entries(DEFAULTS).map(([key, usual]) => [key, given.get(key) ?? usual]));
}

export function toFragment(selection) {
  const changed = Object.entries(selection).filter(([key, value]) => key in DEFAULTS && value !== DEFAULTS[key]);
  return `#${new URLSearchParams(changed)}`;
}

const RANK = { failing: 3, degraded: 2, unknown: 1, ok: 0 };
export const rank = (level) => RANK[level] ?? 1;
export const WORDS = { ok: "well", unknown: "unknown", degraded: "degraded", failing: "fails" };
export const GLYPHS = { ok: "✓", unknown: "?", degraded: "!", failing: "✗" };

export const namespaceOf = (service) => service.split("/")[0];

// Services and clusters that the filters leave, in the order in which they are drawn.
export function selected(view, selection) {
  const words = selection.q.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (text) => words.every((word) => text.toLowerCase().includes(word));
  const clusters = [...view.clusters.values()].filter((each) => !selection.in || each.id === selection.in);
  const shown = new Set(clusters.map((each) => each.id));
  const services = [...view.services.values()].filter(
    (each) =>
      (!selection.ns || namespaceOf(each.id) === selection.ns) &&
      (!selection.bad || each.level !== "ok") &&
      (!selection.in || Object.keys(each.cells).some((name) => shown.has(name))) &&
      (matches(each.name) || clusters.some((cluster) => words.length && matches(cluster.name) && cluster.id in each.cells)),
  );
  services.sort((a, b) => (a.id < b.id ? -1 : 1));
  return { clusters, services };
}

export function rateText(rate) {
  if (rate >= 10000) return `${new Intl.NumberFormat("en", { notation: "compact" }).format(rate)}/s`;
  return rate >= 100 ? `${Math.round(rate)}/s` : `${Number(rate.toPrecision(2))}/s`;
}

export const networkName = (cluster) => (cluster.network ? `island ${cluster.network}` : "flat network");

// Server's texts have UTC; people compare them with their own clock.
export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });
}

export function localTimes(text) {
  return text.replace(/\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z/g, (each) => {
    const moment = new Date(each);
    return Number.isNaN(moment.getTime()) ? each : clock(moment.getTime() / 1000);
  });
}
