// The metric made visible: pixels go or come in the order of a map, and a marker moves along its curve.

import { make, show } from "./dom.js";
import { INS_DEL } from "./face.js";
import { View } from "./lens.js";
import { paintPerturbed } from "./pixels.js";
import { legendEntry, Plot } from "./plot.js";

const LEAST_ROOM = 0.02; // where the best is hardly above random, there is nothing to share out

/**
 * The room for any order of pixels: from random ones to the best known, be it the search's or a method's; null before a
 * search. `textOf` says how far an order gets in it, unless there is hardly any.
 */
export function roomOf(bounds, orders, scoreOf) {
  const [floor, searched] = ["random", "searched"].map((kind) => bounds.find((bound) => bound.kind === kind));
  if (!floor || !searched) return null;
  const best = [searched, ...orders].reduce((one, other) => (scoreOf(other) > scoreOf(one) ? other : one));
  const width = scoreOf(best) - scoreOf(floor);
  const textOf = (order) => {
    const share = Math.round((100 * (scoreOf(order) - scoreOf(floor))) / width);
    return width < LEAST_ROOM ? "" : share < 0 ? ", below random pixels" : `, ${share} % of the best known`;
  };
  return { floor, best, textOf };
}

export class Scrubber {
  /**
   * `choice` holds kind, by, reference and share, and is written to. `onChange` hears of every change of it,
   * `onReference` of another reference, for those who then have something to measure.
   */
  constructor(place, lens, { choice, references, name = "", onChange = () => {}, onReference = () => {} }) {
    Object.assign(this, { choice, onChange, onReference, tiles: [], drawn: [], bounds: [], former: [], isDue: false });
    const group = `kind-${crypto.getRandomValues(new Uint32Array(1))[0]}`; // other widgets of a notebook are other modules
    const id = (own) => (name ? { id: own } : {});
    this.canvas = make("canvas", { ...id("scrub-view"), width: 448, height: 448, tabIndex: 0, "aria-label": "The image with pixels removed" });
    this.by = make("select", { ...id("by"), on: { change: () => { choice.by = Number(this.by.value); this.draw(); } } });
    this.reference = make("select", { ...id("reference"), on: { change: () => this.refer() } },
      ...references.map((one) => make("option", { value: one, selected: one === choice.reference }, one)));
    this.reading = make("p", { ...id("reading"), class: "reading", "aria-live": "polite" });
    this.place = make("div", { ...id("plot"), class: "plot" });
    this.slider = make("input", { ...id("scrub"), type: "range", class: "on-plot", "aria-label": "Top pixels", min: 0, max: 1000, step: 1,
      on: { input: () => this.move(this.slider.value / 1000) } });
    this.legend = make("div", { ...id("legend"), class: "legend" });
    this.legend.dataset.tip = INS_DEL;
    this.kinds = ["delete", "insert"].map((kind) => make("input", { type: "radio", name: name ? "kind" : group, value: kind, checked: kind === choice.kind,
      on: { change: () => { choice.kind = kind; this.draw(); } } }));
    const kinds = this.kinds.map((radio, i) => make("label", {}, radio, ["Delete", "Insert"][i]));
    place.classList.add("scrubber");
    place.replaceChildren(make("div", { class: "scrub-picture" }, this.canvas), make("div", { class: "scrub-side" },
      make("div", { class: "row wrap" }, make("fieldset", { class: "switch" }, make("legend", { class: "away" }, "What happens"), ...kinds),
        make("label", {}, "pixels by ", this.by), make("label", {}, "against ", this.reference)),
      this.reading, this.place, this.slider, this.legend));
    this.view = new View(this.canvas, lens);
    this.plot = new Plot(this.place, (share) => this.move(share));
  }

  /**
   * What there is to scrub: tiles with name, colour, label, map, picture, curves by reference and `referenceView`;
   * bounds with name, kind and curves by reference; former tiles are not shown, but what they reached is known.
   */
  set(tiles, bounds = [], former = []) {
    Object.assign(this, { tiles, bounds, former });
    if (tiles.length) this.choice.by = Math.min(this.choice.by, tiles.length - 1); // without any it may be that of a link
    this.by.replaceChildren(...tiles.map((tile, i) => make("option", { value: i, selected: i === this.choice.by }, tile.name)));
    this.draw();
  }

  /** The curves, the legend and the perturbed picture, after anything they depend on. */
  draw() {
    const { reference, kind, by } = this.choice, side = kind === "delete" ? "deletion" : "insertion";
    this.onChange();
    const curveOf = (one) => ({ fractions: one.curves[reference].fractions, heights: one.curves[reference][side] });
    const measured = this.drawn = this.tiles.filter((tile) => tile.curves?.[reference]);
    const bounds = this.bounds.filter((bound) => bound.curves?.[reference]);
    const scoreOf = (one) => one.curves?.[reference]?.ins_del ?? null;
    const room = roomOf(bounds, [...measured, ...this.former].filter((tile) => !tile.isOther && scoreOf(tile) !== null), scoreOf);
    this.plot.draw(measured.map((tile) => ({ name: tile.name, colour: tile.colour, isOther: tile.isOther, isMain: tile === this.tiles[by], ...curveOf(tile) })), {
      isProbability: measured[0]?.isProbability ?? true,
      bounds: bounds.map((bound) => ({ name: bound.name, kind: bound.kind, ...curveOf(bound) })),
      band: room && { name: `between random pixels and the best known, ${room.best.name}`, low: curveOf(room.floor), high: curveOf(room.best) },
      label: kind === "delete" ? "share of pixels deleted" : "share of pixels inserted",
    });
    this.legend.replaceChildren(
      ...this.tiles.map((tile) => legendEntry(tile.colour, tile.name, scoreOf(tile), tile.isOther, room && !tile.isOther && scoreOf(tile) !== null ? room.textOf(tile) : "")),
      ...bounds.map((bound) => make("span", { class: `bound ${bound.kind}` }, `${bound.name}  ${show(scoreOf(bound))}`)),
      ...(room ? [make("span", { class: "bound room" }, `from random pixels (0 %) to the best known (100 %): ${room.best.name}`)] : []));
    this.scrub();
  }

  move(share) {
    this.choice.share = Math.min(1, Math.max(0, share));
    this.onChange();
    this.scrub();
  }

  flip() {
    this.choice.kind = this.choice.kind === "delete" ? "insert" : "delete";
    for (const radio of this.kinds) radio.checked = radio.value === this.choice.kind;
    this.draw();
  }

  refer() {
    this.choice.reference = this.reference.value;
    this.draw();
    this.onReference();
  }

  /** The picture and the markers for the current share of pixels; once per frame, however fast the slider. */
  scrub() {
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(async () => {
      this.isDue = false;
      const { choice } = this, tile = this.tiles[choice.by];
      this.slider.value = Math.round(choice.share * 1000);
      this.tell(tile, this.plot.mark(choice.share));
      const { map, picture } = tile ?? {};
      if (!map || !picture) return this.view.clear();
      let reference = tile.referenceView(choice.reference);
      if (reference instanceof Promise) {
        reference = await reference;
        if (!reference || tile !== this.tiles[choice.by] || map !== tile.map || picture !== tile.picture) return undefined; // another view by now
      }
      if (this.out?.width !== picture.width || this.out?.height !== picture.height) this.out = new ImageData(picture.width, picture.height);
      const count = Math.round(choice.share * (map.pixels ?? map.ranks.length));
      // In this very frame, so that picture and marker never part.
      this.view.put(paintPerturbed(picture, reference, map.ranks, count, choice.kind, this.out));
      this.view.draw();
      return undefined;
    });
  }

  tell(tile, heights) {
    const { share, kind } = this.choice, percent = `${(share * 100).toFixed(share * 100 < 10 ? 1 : 0)} %`;
    const place = this.drawn.indexOf(tile);
    const what = kind === "delete" ? `Without the top ${percent} of pixels` : `With only the top ${percent} of pixels`;
    if (!tile) this.reading.replaceChildren();
    else if (place < 0) this.reading.replaceChildren(`${what}: ${tile.missing ?? "measuring …"}`);
    else this.reading.replaceChildren(`${what}: ${tile.label} `, make("b", {}, show(heights[place], 3)));
  }
}
