// The map on a canvas: draws a layout, and is moved by mouse, wheel and keys.

import { gatewayPoint, key, layout } from "./layout.js";
import { GLYPHS, WORDS, localTimes, networkName, rateText } from "./select.js";

const MOST_EDGES = 1500; // that are drawn at a time; the page says when there are more
const LABELLED = 60; // edges up to which each has its rate beside it
const SLOW = 24; // ms of a drawing from which a picture of it is moved instead, while it moves
const LARGE = 600; // cards and lines from which that is so whatever a drawing takes: most of the work follows it, unmeasured
const REST = 120; // ms without a movement after which a large map is drawn anew
const LONGEST_REST = 600; // ms; on a busy machine the pauses within a gesture are longer, and a drawing in one lengthens them
const FONT = "system-ui, sans-serif";

export class Picture {
  constructor(canvas, { onPick, onFocus, onDrawn }) {
    this.canvas = canvas;
    this.ctx = canvas.getContext("2d");
    this.onPick = onPick;
    this.onFocus = onFocus;
    this.onDrawn = onDrawn;
    this.at = { x: 0, y: 0, scale: 1 };
    this.fitted = false;
    this.focus = null;
    this.took = 0;
    this.enlarged = 1;
    this.movedAt = -Infinity;
    this.rest = REST;
    this.plan = layout([], [], []);
    this.listen();
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(canvas);
    this.resize();
  }

  close() {
    this.observer.disconnect();
    cancelAnimationFrame(this.frame);
  }

  // True while a large map is moved: what is new waits until it rests.
  get moving() {
    return this.large && this.image && performance.now() - this.movedAt < this.rest;
  }

  show(clusters, services, edges, selection) {
    if (this.moving) {
      this.waiting = [clusters, services, edges, selection];
      return;
    }
    this.waiting = null;
    const shape = JSON.stringify([clusters.map((each) => [each.id, each.network]), services.map((each) => each.id)]);
    this.plan = layout(clusters, services, edges);
    this.selection = selection;
    if (shape !== this.shape && !this.moved) this.fit();
    this.shape = shape;
    this.stale = true;
    this.draw();
  }

  resize() {
    const ratio = devicePixelRatio || 1;
    this.canvas.width = Math.max(1, this.canvas.clientWidth * ratio);
    this.canvas.height = Math.max(1, this.canvas.clientHeight * ratio);
    if (!this.moved) this.fit();
    this.stale = true;
    this.draw();
  }

  fit() {
    const { x, y, w, h } = this.plan.bounds;
    const width = this.canvas.clientWidth;
    const height = this.canvas.clientHeight;
    const scale = Math.min(1.4, (width - 32) / w, (height - 32) / h);
    this.at = { scale, x: (width - w * scale) / 2 - x * scale, y: (height - h * scale) / 2 - y * scale };
    this.moved = false;
    this.stale = true;
    this.draw();
  }

  listen() {
    const canvas = this.canvas;
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.clientX, y: event.clientY, far: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!drag) return;
      const dx = event.clientX - drag.x;
      const dy = event.clientY - drag.y;
      if (!drag.far && Math.hypot(dx, dy) < 4) return;
      Object.assign(drag, { x: event.clientX, y: event.clientY, far: true });
      this.move(dx, dy);
    });
    canvas.addEventListener("pointerup", (event) => {
      if (drag && !drag.far) this.pick(this.hit(event.offsetX, event.offsetY));
      drag = null;
    });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY / 500), event.offsetX, event.offsetY);
    }, { passive: false });
    canvas.addEventListener("dblclick", () => this.fit());
    canvas.addEventListener("keydown", (event) => this.onKey(event));
    canvas.addEventListener("blur", () => {
      this.focus = null;
      this.stale = true;
      this.draw();
    });
  }

  move(dx, dy) {
    this.at = { ...this.at, x: this.at.x + dx, y: this.at.y + dy };
    this.markMoved();
    this.draw();
  }

  zoom(factor, x, y) {
    const scale = Math.min(4, Math.max(0.02, this.at.scale * factor));
    const real = scale / this.at.scale;
    this.at = { scale, x: x - (x - this.at.x) * real, y: y - (y - this.at.y) * real };
    this.markMoved();
    this.draw();
  }

  // A map rests after three times the pause between its last two movements.
  markMoved() {
    const now = performance.now();
    const pause = now - this.movedAt;
    this.rest = pause < LONGEST_REST ? Math.min(LONGEST_REST, Math.max(REST, 3 * pause)) : REST;
    this.moved = true;
    this.movedAt = now;
  }

  hit(x, y) {
    const px = (x - this.at.x) / this.at.scale;
    const py = (y - this.at.y) / this.at.scale;
    const inside = (box) => px >= box.x && px <= box.x + box.w && py >= box.y && py <= box.y + box.h;
    const node = [...this.plan.nodes.values()].find(inside);
    if (node) return { service: node.service.id, cluster: node.cluster.id };
    const region = this.plan.regions.find(inside);
    return { service: "", cluster: region?.cluster.id ?? "" };
  }

  pick(what) {
    this.onPick(what);
  }

  onKey(event) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (event.key in steps) this.step(...steps[event.key]);
    else if (event.key === "Enter" || event.key === " ") this.focus && this.pick(this.focus.of);
    else if (event.key === "+" || event.key === "=") this.zoom(1.25, this.canvas.clientWidth / 2, this.canvas.clientHeight / 2);
    else if (event.key === "-") this.zoom(0.8, this.canvas.clientWidth / 2, this.canvas.clientHeight / 2);
    else if (event.key === "0") this.fit();
    else if (event.key === "Escape") this.pick({ service: "", cluster: "" });
    else return;
    event.preventDefault();
  }

  // Move the keyboard's focus to the nearest thing in a direction: clusters' heads and services' cards.
  step(dx, dy) {
    const things = [
      ...this.plan.regions.map((each) => ({ x: each.x, y: each.y, w: each.w, h: 80, text: regionText(each.cluster), of: { service: "", cluster: each.cluster.id } })),
      ...[...this.plan.nodes.values()].map((each) => ({ ...each, text: nodeText(each), of: { service: each.service.id, cluster: each.cluster.id } })),
    ];
    if (!things.length) return;
    const centre = (each) => [each.x + each.w / 2, each.y + each.h / 2];
    if (!this.focus) {
      [this.focus] = things;
    } else {
      const [fx, fy] = centre(this.focus);
      let best = Infinity;
      for (const each of things) {
        const [x, y] = centre(each);
        const along = (x - fx) * dx + (y - fy) * dy;
        const aside = Math.abs((x - fx) * dy) + Math.abs((y - fy) * dx);
        if (along > 1 && along + 3 * aside < best) {
          best = along + 3 * aside;
          this.next = each;
        }
      }
      if (best < Infinity) this.focus = this.next;
    }
    this.reveal(this.focus);
    this.onFocus(this.focus.text);
    this.stale = true;
    this.draw();
  }

  reveal(box) {
    const { scale } = this.at;
    const x = this.at.x + box.x * scale;
    const y = this.at.y + box.y * scale;
    const dx = x < 0 ? 20 - x : Math.min(0, this.canvas.clientWidth - 20 - x - box.w * scale);
    const dy = y < 0 ? 20 - y : Math.min(0, this.canvas.clientHeight - 20 - y - box.h * scale);
    if (dx || dy) this.move(dx, dy);
  }

  draw() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      if (this.moving) {
        this.drawImage();
        return;
      }
      this.drawAll();
      this.onDrawn?.({ took: this.took, nodes: this.plan.nodes.size, edges: this.plan.edges.length, drawn: this.drawn });
    });
  }

  // A large map while it moves: the last picture of it, moved and scaled, and a true one when it rests.
  drawImage() {
    const { ctx, canvas } = this;
    const ratio = devicePixelRatio || 1;
    const scale = this.at.scale / this.image.at.scale;
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    ctx.fillStyle = this.palette.back;
    ctx.fillRect(0, 0, canvas.width, canvas.height);
    ctx.setTransform(scale, 0, 0, scale, (this.at.x - this.image.at.x * scale) * ratio, (this.at.y - this.image.at.y * scale) * ratio);
    ctx.drawImage(this.image.canvas, 0, 0);
    clearTimeout(this.resting);
    this.resting = setTimeout(() => {
      if (this.waiting) this.show(...this.waiting);
      else this.draw();
    }, this.rest);
  }

  drawAll() {
    const began = performance.now();
    const { ctx, canvas, at } = this;
    const ratio = devicePixelRatio || 1;
    this.palette = this.colours();
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    ctx.fillStyle = this.palette.back;
    ctx.fillRect(0, 0, canvas.width, canvas.height);
    ctx.setTransform(at.scale * ratio, 0, 0, at.scale * ratio, at.x * ratio, at.y * ratio);
    const view = { x: -at.x / at.scale, y: -at.y / at.scale, w: canvas.clientWidth / at.scale, h: canvas.clientHeight / at.scale };
    const visible = (box) => box.x < view.x + view.w && box.x + box.w > view.x && box.y < view.y + view.h && box.y + box.h > view.y;
    for (const network of this.plan.networks) this.drawNetwork(network);
    for (const region of this.plan.regions) if (visible(region)) this.drawRegion(region);
    const edges = this.plan.edges.slice(-MOST_EDGES);
    this.drawn = edges.length;
    const labels = edges.length <= LABELLED && at.scale > 0.45;
    for (const line of edges) this.drawLine(line);
    for (const region of this.plan.regions) if (visible(region)) this.drawHead(region);
    for (const node of this.plan.nodes.values()) if (visible(node)) this.drawNode(node);
    if (labels) for (const line of edges) this.drawLabel(line);
    if (this.focus) this.outline(this.focus, this.palette.focus, 4);
    this.stale = false;
    this.took = performance.now() - began;
    this.large = this.took > SLOW || this.plan.nodes.size + edges.length > LARGE;
    if (this.large) {
      this.image ??= { canvas: document.createElement("canvas") };
      this.image.canvas.width = canvas.width;
      this.image.canvas.height = canvas.height;
      this.image.canvas.getContext("2d").drawImage(canvas, 0, 0);
      this.image.at = { ...at };
    }
  }

  colours() {
    const style = getComputedStyle(this.canvas);
    const names = ["back", "frame", "card", "text", "dim", "ok", "unknown", "degraded", "failing", "call", "focus", "region"];
    return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  }

  drawNetwork(box) {
    const { ctx, palette } = this;
    ctx.strokeStyle = palette.frame;
    ctx.lineWidth = 1.5;
    ctx.setLineDash(box.name ? [2, 5] : [12, 6]);
    rounded(ctx, box, 18);
    ctx.stroke();
    ctx.setLineDash([]);
    this.text(networkName({ network: box.name }), box.x + 18, box.y + 20, box.w - 36, 14, palette.dim);
  }

  drawRegion(region) {
    const { ctx, palette } = this;
    const { cluster } = region;
    ctx.fillStyle = palette.region;
    rounded(ctx, region, 12);
    ctx.fill();
    ctx.strokeStyle = palette[cluster.level];
    ctx.lineWidth = cluster.level === "ok" ? 1.5 : 4;
    ctx.setLineDash(cluster.level === "unknown" ? [8, 6] : []);
    ctx.stroke();
    ctx.setLineDash([]);
    if (this.selection?.cluster === cluster.id && !this.selection.service) this.outline(region, palette.focus, 3);
  }

  // Above the calls, which may pass behind: what is wrong has to be read.
  drawHead(region) {
    const { ctx, palette } = this;
    const { cluster } = region;
    const large = region.head / 104;
    const width = region.w / large - 32;
    ctx.save();
    ctx.translate(region.x, region.y);
    ctx.scale(large, large);
    this.enlarged = large;
    ctx.fillStyle = palette.region;
    ctx.globalAlpha = 0.9;
    ctx.fillRect(6, 6, region.w / large - 12, cluster.level === "ok" ? 50 : 84);
    ctx.globalAlpha = 1;
    const size = large > 1.3 ? 56 : 20;
    this.text(cluster.name, 16, 8 + size, width - 96, size, palette.text, 600);
    this.pill(cluster.level, region.w / large - 14, 22);
    const place = [cluster.region, cluster.zone].filter(Boolean).join(" / ");
    const asked = cluster.asked ? "" : "not asked: as others see it";
    this.text([place, asked].filter(Boolean).join(" · "), 16, 28 + size, width, 12, palette.dim);
    const lines = cluster.level === "ok" ? [] : wrap(ctx, localTimes(cluster.why[0] ?? ""), width, 12, 2);
    lines.forEach((line, index) => this.text(line, 16, 68 + index * 16, width, 12, palette[cluster.level === "ok" ? "dim" : cluster.level]));
    ctx.restore();
    this.enlarged = 1;
    cluster.gateways.slice(0, 4).forEach((gateway, index) => this.drawGateway(gateway, region, index));
  }

  drawGateway(gateway, region, index) {
    const { ctx, palette } = this;
    const at = gatewayPoint(region);
    const level = gateway.healthy === null ? "unknown" : gateway.healthy ? "ok" : "failing";
    ctx.beginPath();
    ctx.arc(at.x + index * 24, at.y, 9, 0, 7);
    ctx.fillStyle = palette.card;
    ctx.fill();
    ctx.strokeStyle = palette[level];
    ctx.lineWidth = 3;
    ctx.stroke();
    ctx.textAlign = "center";
    this.text(GLYPHS[level], at.x + index * 24, at.y + 4, 20, 11, palette[level], 700);
    ctx.textAlign = "left";
    if (!index) {
      const name = region.cluster.gateways.length === 1 ? "gateway" : `${region.cluster.gateways.length} gateways`;
      this.text(name, at.x + 14 + 24 * (Math.min(4, region.cluster.gateways.length) - 1), at.y - 8, 200, 11, palette.dim);
    }
  }

  drawNode(node) {
    const { ctx, palette, at } = this;
    const { cell, service } = node;
    if (node.h * at.scale < 6) {
      ctx.fillStyle = cell.level === "ok" ? (cell.backends ? palette.ok : palette.frame) : palette[cell.level];
      ctx.fillRect(node.x, node.y, node.w, node.h);
      return;
    }
    const chosen = this.selection?.service === service.id;
    ctx.fillStyle = palette.card;
    rounded(ctx, node, 7);
    ctx.fill();
    ctx.strokeStyle = cell.level === "ok" ? palette.frame : palette[cell.level];
    ctx.lineWidth = chosen ? 3 : cell.level === "ok" ? 1 : 2;
    ctx.setLineDash(cell.exported || cell.backends ? [] : [4, 4]);
    if (chosen) ctx.strokeStyle = palette.focus;
    ctx.stroke();
    ctx.setLineDash([]);
    ctx.fillStyle = palette[cell.level];
    ctx.fillRect(node.x + 1, node.y + 6, 5, node.h - 12);
    if (node.h * at.scale < 11) return;
    const x = node.x + 14;
    this.text(GLYPHS[cell.level], x, node.y + 20 - (node.narrow ? 4 : 0), 16, node.narrow ? 11 : 14, palette[cell.level], 700);
    this.text(service.name, x + 18, node.y + 20 - (node.narrow ? 4 : 0), node.w - 38, node.narrow ? 11 : 14, palette.text, 500);
    if (!node.narrow) this.text(cellText(cell), x + 18, node.y + 39, node.w - 38, 12, cell.level === "ok" ? palette.dim : palette[cell.level]);
  }

  drawLine({ edge, start, end, c1, c2, loop, gateway }) {
    const { ctx, palette } = this;
    const width = 1.2 + 1.6 * Math.log2(1 + edge.rate);
    ctx.strokeStyle = edge.failed > 0 ? palette.failing : edge.moved > 0 ? palette.degraded : palette.call;
    ctx.lineWidth = Math.min(14, width);
    ctx.globalAlpha = edge.failed > 0 ? 0.95 : 0.6;
    ctx.setLineDash(edge.failed > 0 ? [10, 6] : []);
    ctx.beginPath();
    ctx.moveTo(start.x, start.y);
    if (loop) ctx.bezierCurveTo(start.x + 34, start.y - 8, end.x + 34, end.y + 8, end.x, end.y);
    else if (gateway) {
      ctx.quadraticCurveTo(c1.x, gateway.y + 40, gateway.x, gateway.y);
      ctx.lineTo(end.x, end.y);
    } else ctx.bezierCurveTo(c1.x, c1.y, c2.x, c2.y, end.x, end.y);
    ctx.stroke();
    ctx.setLineDash([]);
    this.arrow(loop ? { x: end.x + 34, y: end.y + 8 } : gateway ?? c2, end, ctx.lineWidth);
    ctx.globalAlpha = 1;
  }

  arrow(from, to, width) {
    const { ctx } = this;
    const angle = Math.atan2(to.y - from.y, to.x - from.x);
    const size = 5 + width;
    ctx.fillStyle = ctx.strokeStyle;
    ctx.beginPath();
    ctx.moveTo(to.x, to.y);
    ctx.lineTo(to.x - size * Math.cos(angle - 0.45), to.y - size * Math.sin(angle - 0.45));
    ctx.lineTo(to.x - size * Math.cos(angle + 0.45), to.y - size * Math.sin(angle + 0.45));
    ctx.fill();
  }

  drawLabel({ edge, start, end, c1, c2, loop }) {
    const { ctx, palette } = this;
    const words = rateText(edge.rate) + (edge.failed ? `, ${rateText(edge.failed)} fail` : edge.moved ? `, ${rateText(edge.moved)} moved` : "");
    // Beside the caller, between two clusters: there is nothing below it to read.
    const t = Math.min(0.3, 62 / Math.max(1, Math.abs(end.x - start.x)));
    const u = 1 - t;
    const on = (axis) => u ** 3 * start[axis] + 3 * u * u * t * c1[axis] + 3 * u * t * t * c2[axis] + t ** 3 * end[axis];
    const x = loop ? start.x + 30 : on("x");
    const y = loop ? (start.y + end.y) / 2 + 4 : on("y") + 4;
    ctx.font = `500 12px ${FONT}`;
    const width = ctx.measureText(words).width;
    ctx.textAlign = loop ? "left" : "center";
    ctx.fillStyle = palette.back;
    ctx.globalAlpha = 0.85;
    ctx.fillRect(loop ? x - 3 : x - width / 2 - 3, y - 12, width + 6, 16);
    ctx.globalAlpha = 1;
    ctx.fillStyle = edge.failed ? palette.failing : palette.text;
    ctx.fillText(words, x, y);
    ctx.textAlign = "left";
  }

  pill(level, right, y) {
    const { ctx, palette } = this;
    const words = `${GLYPHS[level]} ${WORDS[level]}`;
    ctx.font = `600 12px ${FONT}`;
    const width = ctx.measureText(words).width + 16;
    ctx.fillStyle = palette[level];
    rounded(ctx, { x: right - width, y: y - 11, w: width, h: 22 }, 11);
    ctx.fill();
    ctx.fillStyle = palette.card;
    ctx.fillText(words, right - width + 8, y + 4);
  }

  text(words, x, y, width, size, colour, weight = 400) {
    if (!words || size * this.at.scale * this.enlarged < 4) return;
    const { ctx } = this;
    ctx.font = `${weight} ${size}px ${FONT}`;
    ctx.fillStyle = colour;
    ctx.fillText(cut(ctx, words, width), x, y);
  }

  outline(box, colour, width) {
    const { ctx } = this;
    ctx.strokeStyle = colour;
    ctx.lineWidth = width / Math.min(1, this.at.scale);
    rounded(ctx, { x: box.x - 4, y: box.y - 4, w: box.w + 8, h: box.h + 8 }, 12);
    ctx.stroke();
  }
}

export function cellText(cell) {
  if (!cell.backends) return cell.exported ? "no backend" : "called from here";
  const states = Object.entries(cell.states).map(([state, count]) => `${count} ${state}`);
  return [`${cell.usable} of ${cell.backends} ready`, ...states].join(", ");
}

export const nodeText = ({ service, cluster, cell }) => `Service ${service.name} in ${cluster.name}: ${WORDS[cell.level]}, ${cellText(cell)}`;

export const regionText = (cluster) => `Cluster ${cluster.name}: ${WORDS[cluster.level]}${cluster.why.length ? `, ${cluster.why[0]}` : ""}`;

function rounded(ctx, { x, y, w, h }, radius) {
  ctx.beginPath();
  ctx.roundRect(x, y, w, h, radius);
}

const widths = new Map();

// A text cut to a width, with an ellipsis. Measuring costs more than drawing, so results are kept.
function cut(ctx, words, width) {
  const id = `${ctx.font} ${Math.round(width)} ${words}`;
  let result = widths.get(id);
  if (result === undefined) {
    if (widths.size > 20000) widths.clear();
    result = words.length > 300 ? `${words.slice(0, 300)}…` : words;
    while (result.length > 1 && ctx.measureText(result).width > width) result = `${result.slice(0, Math.max(1, result.length - 2 - Math.floor(result.length / 12)))}…`;
    widths.set(id, result);
  }
  return result;
}

function wrap(ctx, words, width, size, most) {
  ctx.font = `400 ${size}px ${FONT}`;
  const lines = [""];
  for (const word of words.split(/\s+/).slice(0, 80)) {
    const longer = lines.at(-1) ? `${lines.at(-1)} ${word}` : word;
    if (ctx.measureText(longer).width <= width || !lines.at(-1)) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines.length > most ? [...lines.slice(0, most - 1), `${lines.slice(most - 1).join(" ")}`] : lines;
}

export { key };
