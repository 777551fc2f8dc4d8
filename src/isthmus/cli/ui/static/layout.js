// Where clusters, services and calls are on the map. Pure: the same view has the same picture.
// A service has the same place in each cluster, so a call goes between two equal places.

const WIDE = { w: 210, h: 54, gap: 16 };
const NARROW = { w: 132, h: 24, gap: 5 };
const MANY = 24; // services from which cards are narrow
const PADDING = 16;
const HEAD = 104;
const BETWEEN = 120;
const FRAME = 34;

export function layout(clusters, services, edges) {
  const card = services.length > MANY ? NARROW : WIDE;
  const columns = services.length <= 6 ? 1 : Math.max(1, Math.round(Math.sqrt((services.length * card.h) / (card.w * 0.8))));
  const rows = Math.max(1, Math.ceil(services.length / columns));
  // Heads grow with their regions, so that names can be read where all of a large map is seen.
  const head = Math.max(HEAD, 0.14 * rows * (card.h + card.gap));
  const size = {
    head,
    w: Math.max(columns * (card.w + card.gap) - card.gap, 210) + 2 * PADDING,
    h: head + rows * (card.h + card.gap) - card.gap + PADDING + (clusters.some((each) => each.gateways.length) ? 30 : 0),
  };
  const { regions, networks } = place(clusters, size);
  const nodes = new Map();
  for (const region of regions) {
    services.forEach((service, index) => {
      const cell = service.cells[region.cluster.id];
      if (!cell) return;
      const x = region.x + PADDING + (index % columns) * (card.w + card.gap);
      const y = region.y + head + Math.floor(index / columns) * (card.h + card.gap);
      nodes.set(key(service.id, region.cluster.id), { x, y, w: card.w, h: card.h, service, cell, cluster: region.cluster, narrow: card === NARROW });
    });
  }
  return { regions, networks, nodes, edges: lines(edges, nodes, regions), bounds: around(networks) };
}

export const key = (service, cluster) => `${service} ${cluster}`;

function place(clusters, size) {
  const byNetwork = new Map();
  for (const cluster of clusters) {
    if (!byNetwork.has(cluster.network)) byNetwork.set(cluster.network, []);
    byNetwork.get(cluster.network).push(cluster);
  }
  const names = [...byNetwork.keys()].sort();
  const across = clusters.length <= 4 ? 4 : Math.ceil(Math.sqrt(clusters.length * 2));
  const regions = [];
  const networks = [];
  let x = 0;
  let y = 0;
  let height = 0;
  const widest = across * (size.w + BETWEEN) + 2 * FRAME;
  for (const name of names) {
    const members = byNetwork.get(name);
    const columns = Math.min(across, members.length);
    const w = columns * (size.w + BETWEEN) - BETWEEN + 2 * FRAME;
    const h = Math.ceil(members.length / columns) * (size.h + BETWEEN / 2) - BETWEEN / 2 + 2 * FRAME;
    if (x && x + w > widest) {
      x = 0;
      y += height + 2 * FRAME;
      height = 0;
    }
    networks.push({ x, y, w, h, name });
    members.forEach((cluster, index) => {
      regions.push({
        cluster,
        x: x + FRAME + (index % columns) * (size.w + BETWEEN),
        y: y + FRAME + Math.floor(index / columns) * (size.h + BETWEEN / 2),
        ...size,
      });
    });
    x += w + BETWEEN;
    height = Math.max(height, h);
  }
  return { regions, networks };
}

function lines(edges, nodes, regions) {
  const byCluster = new Map(regions.map((region) => [region.cluster.id, region]));
  const found = [];
  for (const edge of edges) {
    const from = nodes.get(key(edge.service, edge.source));
    const to = edge.target ? nodes.get(key(edge.service, edge.target)) : from;
    if (!from || !to) continue;
    const region = byCluster.get(edge.target);
    const crosses = region && region.cluster.network !== byCluster.get(edge.source)?.cluster.network;
    const gateway = crosses && region.cluster.gateways.length ? gatewayPoint(region) : null;
    found.push({ edge, from, to, ...curve(from, to, gateway) });
  }
  // The strongest are drawn last, on top, and failing ones above all.
  return found.sort((a, b) => (a.edge.failed > 0) - (b.edge.failed > 0) || a.edge.rate - b.edge.rate);
}

export const gatewayPoint = (region) => ({ x: region.x + 40, y: region.y + region.h });

function curve(from, to, gateway) {
  const middle = (node) => ({ x: node.x + node.w / 2, y: node.y + node.h / 2 });
  const a = middle(from);
  const b = middle(to);
  if (from === to) return { loop: true, start: { x: from.x + from.w, y: a.y - 10 }, end: { x: from.x + from.w, y: a.y + 10 } };
  const right = b.x >= a.x;
  const far = Math.abs(b.x - a.x);
  // Calls there and back bow to different sides; longer ones bow more, and pass what is between.
  const bow = (right ? -1 : 1) * Math.min(90, 14 + (far > 460 ? far / 12 : 0));
  const start = { x: right ? from.x + from.w : from.x, y: a.y + (right ? -6 : 6) };
  const end = { x: right ? to.x : to.x + to.w, y: b.y + (right ? -6 : 6) };
  const bend = Math.max(40, Math.abs(end.x - start.x) / 3) * (right ? 1 : -1);
  const c1 = { x: start.x + bend, y: start.y + bow };
  const c2 = { x: end.x - bend, y: end.y + bow };
  return { loop: false, start, end, c1, c2, gateway };
}

function around(boxes) {
  if (!boxes.length) return { x: 0, y: 0, w: 100, h: 100 };
  const x = Math.min(...boxes.map((each) => each.x));
  const y = Math.min(...boxes.map((each) => each.y));
  return {
    x,
    y,
    w: Math.max(...boxes.map((each) => each.x + each.w)) - x,
    h: Math.max(...boxes.map((each) => each.y + each.h)) - y,
  };
}
