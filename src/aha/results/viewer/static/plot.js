// Curves in one plot, with a marker on each; dragging in it scrubs.

import { make, show, svg } from "./dom.js";
import { heightAt } from "./pixels.js";

const WIDTH = 640, HEIGHT = 300, LEFT = 56, RIGHT = 34, TOP = 14, BOTTOM = 50;

export class Plot {
  /** `onScrub` is told the share of pixels under the pointer; without it the plot is only looked at. */
  constructor(place, onScrub = null) {
    this.svg = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", ...(onScrub && { class: "scrubs" }) });
    place.replaceChildren(this.svg);
    this.share = 0;
    if (!onScrub) return;
    let isDown = false;
    const scrub = (event) => {
      const box = this.svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * WIDTH;
      onScrub(Math.min(1, Math.max(0, (x - LEFT) / (WIDTH - LEFT - RIGHT))));
    };
    this.svg.addEventListener("pointerdown", (event) => { isDown = true; this.svg.setPointerCapture(event.pointerId); scrub(event); });
    this.svg.addEventListener("pointermove", (event) => isDown && scrub(event));
    for (const name of ["pointerup", "pointercancel"]) this.svg.addEventListener(name, () => { isDown = false; });
  }

  /**
   * Lines: { colour, name, fractions, heights, isMain, isOther }; in grey, what random pixels and an order that was
   * searched for give: { name, kind, fractions, heights }, and a band between two curves: { name, low, high }.
   */
  draw(lines, { isProbability, label, bounds = [], band = null }) {
    this.lines = lines;
    const all = [...lines, ...bounds].flatMap((line) => line.heights);
    this.low = isProbability ? 0 : Math.min(0, ...all);
    this.high = isProbability ? 1 : Math.max(this.low + 1e-9, ...all);
    const ticks = [0, 0.25, 0.5, 0.75, 1];
    const across = ticks.map((t) => svg("text", { x: this.x(t), y: HEIGHT - 28, "text-anchor": "middle" }, `${t * 100} %`));
    const up = ticks.flatMap((t) => {
      const value = this.low + t * (this.high - this.low), y = this.y(value);
      return [svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y }),
        svg("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" }, isProbability ? show(value) : value.toPrecision(2))];
    });
    const limits = [...(band ? [this.filled(band)] : []), ...bounds.map((line) => this.path(line, `bound ${line.kind}`))];
    const paths = [...lines].sort((a, b) => a.isMain - b.isMain).map((line) =>
      this.path(line, `c${line.colour}${line.isMain ? "" : " other"}${line.isOther ? " dashed" : ""}`));
    this.cursor = svg("line", { class: "cursor", x1: LEFT, x2: LEFT, y1: TOP, y2: HEIGHT - BOTTOM });
    this.markers = lines.map((line) => svg("circle", { class: `c${line.colour} marker`, r: line.isMain ? 7 : 4.5 }));
    this.svg.setAttribute("aria-label", label);
    const axis = svg("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, label);
    const marks = this.svg.classList.contains("scrubs") ? [this.cursor, ...paths, ...this.markers] : paths;
    this.mark(this.share); // new markers stand where the old ones stood
    this.svg.replaceChildren(...up, ...across, axis, ...limits, ...marks);
  }

  path(line, classes) {
    return svg("path", { class: classes, d: `M${this.points(line).join("L")}` }, svg("title", {}, line.name));
  }

  points(line) { return line.fractions.map((f, i) => `${this.x(f).toFixed(1)} ${this.y(line.heights[i]).toFixed(1)}`); }

  filled({ name, low, high }) {
    return svg("polygon", { class: "band", points: [...this.points(high), ...this.points(low).reverse()].join(",") }, svg("title", {}, name));
  }

  x(share) { return LEFT + share * (WIDTH - LEFT - RIGHT); }
  y(value) { return HEIGHT - BOTTOM - ((value - this.low) / (this.high - this.low)) * (HEIGHT - TOP - BOTTOM); }

  /** Moves the markers along their curves; returns the heights. */
  mark(share) {
    this.share = share;
    if (!this.lines) return [];
    this.cursor.setAttribute("x1", this.x(share));
    this.cursor.setAttribute("x2", this.x(share));
    return this.lines.map((line, i) => {
      const height = heightAt(line.fractions, line.heights, share);
      this.markers[i].setAttribute("cx", this.x(share));
      this.markers[i].setAttribute("cy", this.y(height));
      return height;
    });
  }
}

export const legendEntry = (colour, name, score, isOther = false, room = "") =>
  make("span", { class: `c${colour}${isOther ? " dashed" : ""}` }, `${name}  Ins-Del ${score === null ? "…" : show(score)}${room}`);
