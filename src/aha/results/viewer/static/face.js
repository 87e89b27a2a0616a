// One map as people see it: on its picture, under its name, above a bar of its colours with numbers at the ends.

import { make, short } from "./dom.js";
import { pixelAt, View } from "./lens.js";
import { isSigned, paintMap } from "./pixels.js";

export const INS_DEL = "Ins-Del: the area under the insertion curve minus the area under the deletion curve. "
  + "High when the score falls at once as the marked pixels go, and rises at once as they come; "
  + "an order that knows nothing gets about 0.";

export const colourMapOf = (look, signed) => look.cmap || (signed ? "RdBu_r" : "inferno");

/** A method's text that may be broken where its parameters begin, or between two of them. */
const breakable = (name) => name.split(/(?<=[(,])/).flatMap((part, i) => (i ? [make("wbr"), part] : [part]));

export class Face {
  /** `onClose` puts a button that takes the map away. */
  constructor(lens, { name, colour, isOther = false, side = "", onClose = null }) {
    this.canvas = make("canvas", { width: 480, height: 480, tabIndex: 0, "aria-label": `Map of ${name}` });
    this.value = make("span", { class: "value" });
    this.score = make("b", { class: "score hint-below", tabIndex: 0, data: { tip: INS_DEL } });
    this.status = make("div", { class: "status" });
    this.bar = make("canvas", { class: "scale", width: 256, height: 1 });
    [this.low, this.high] = [make("span"), make("span")];
    this.ends = make("div", { class: "ends" }, this.low, this.high);
    const close = onClose && make("button", { type: "button", class: "close", title: "Remove", "aria-label": `Remove ${name}`, on: { click: onClose } }, "×");
    const title = make("div", { class: "title" }, make("span", { class: "name" }, make("span", {}, ...breakable(name))), ...(close ? [close] : []));
    this.element = make("figure", { class: `tile c${colour}${isOther ? " dashed" : ""}`, data: { method: name } }, this.canvas,
      make("figcaption", {}, title, ...(side ? [make("div", { class: "side" }, side)] : []),
        this.bar, this.ends, make("div", { class: "facts" }, this.score, this.value), this.status));
    this.view = new View(this.canvas, lens);
    this.turn = 0;
  }

  /** Draws a map; `tableOf` gives the colours of a name. */
  async paint(picture, map, look, tableOf) {
    const turn = ++this.turn, signed = isSigned(map, look.signed), table = await tableOf(colourMapOf(look, signed));
    if (turn !== this.turn) return; // colours came late: by now another look is wanted, or nothing of this map
    this.map = map;
    this.view.show(paintMap(picture, map, { ...look, signed, table }));
    const strip = new ImageData(256, 1);
    for (let i = 0; i < 256; i++) strip.data.set([table[3 * i], table[3 * i + 1], table[3 * i + 2], 255], 4 * i);
    this.bar.getContext("2d").putImageData(strip, 0, 0);
    const [low, high] = signed ? [-map.limit, map.limit] : [map.low, map.high];
    // A low end that no colour could tell from nothing is called nothing.
    [this.low.textContent, this.high.textContent] = [short(Math.abs(low) < 1e-4 * Math.abs(high) ? 0 : low), short(high)];
    this.bar.hidden = this.ends.hidden = look.mode === "mask";
  }

  /** The picture alone, without anything that was said about another. */
  blank(picture = null) {
    this.map = null;
    this.turn++;
    for (const place of [this.low, this.high, this.value]) place.textContent = "";
    this.status.replaceChildren();
    this.bar.hidden = this.ends.hidden = true;
    if (!picture) return this.view.clear();
    this.view.put(picture);
    this.view.draw(); // at once: nothing of another class may stay for a frame
    return undefined;
  }

  /** The value under a cursor, or what is said when there is none. */
  tell(cursor, otherwise = "") {
    const at = cursor && this.map ? this.map.values[pixelAt(cursor, this.map.width, this.map.height)] : null;
    this.value.textContent = at === null || at === undefined ? otherwise : short(at);
  }

  close() { this.view.close(); }
}
