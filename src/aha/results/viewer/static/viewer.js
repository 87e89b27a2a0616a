// Explanations without a server: maps side by side and the scrubber, from one object that holds everything.

import { make, show } from "./dom.js";
import { Face } from "./face.js";
import { Lens } from "./lens.js";
import { bytesOf, decode, floats } from "./pixels.js";
import { Scrubber } from "./scrubber.js";

const AVERAGE = "average", MOST_COLOURS = 8;
const NOT_MEASURED = "not measured; explain with card=True";
const LOOK = { mode: "overlay", opacity: 0.75, top: 20, cmap: "", signed: "auto" };

/** A map as the views want it: its numbers, and the order in which its pixels go. */
function unpacked(map) {
  const ranks = bytesOf(map.ranks);
  return {
    ...map, values: floats(bytesOf(map.values), map.unit),
    ranks: map.wide ? new Uint32Array(ranks) : new Uint16Array(ranks),
  };
}

class Viewer {
  constructor(root, payload) {
    Object.assign(this, { payload, lens: new Lens(), look: { ...LOOK }, choice: { kind: "delete", by: 0, reference: AVERAGE, share: 0.1 }, tiles: [], turn: 0 });
    const change = (read) => ({ change: (event) => { read(event.target.value); } });
    this.picture = make("select", { on: change((value) => { this.slice.value = value; this.open(); }) }, ...payload.pictures.map((one, i) => make("option", { value: i }, one.name)));
    this.class = make("select", { on: change(() => this.open()) });
    const mode = make("select", { on: change((value) => { this.look.mode = value; this.paint(); }) },
      ...[["overlay", "over the image"], ["map", "the map alone"], ["mask", "top 20 % only"]].map(([value, name]) => make("option", { value }, name)));
    const opacity = make("input", { type: "range", min: 0, max: 1, step: 0.05, value: this.look.opacity, on: { input: () => { this.look.opacity = Number(opacity.value); this.paint(); } } });
    this.place = make("div", { class: "tiles" });
    this.card = make("p", { class: "card-text" });
    this.pictureLabel = make("label", {}, "Image ", this.picture);
    this.pictureLabel.hidden = payload.pictures.length < 2;
    this.slice = make("input", { type: "range", min: 0, max: Math.max(0, payload.slices - 1), step: 1, value: 0, "aria-label": "Slice",
      on: { input: () => { this.picture.value = this.slice.value; this.open(); } } });
    const slice = make("label", {}, "Slice ", this.slice);
    slice.hidden = !payload.slices;
    this.classLabel = make("label", {}, "Class ", this.class);
    const place = make("div");
    root.classList.add("aha");
    root.replaceChildren(make("div", { class: "row wrap viewer-tools" }, this.pictureLabel, slice, this.classLabel, make("label", {}, "Show ", mode), make("label", {}, "Opacity ", opacity)),
      this.place, place, this.card);
    this.scrubber = new Scrubber(place, this.lens, { choice: this.choice, references: [AVERAGE] });
    this.scrubber.reference.closest("label").hidden = true;
    this.lens.onCursor((cursor) => { for (const tile of this.tiles) tile.face.tell(cursor, tile.cost); });
    this.ready = this.open();
  }

  tableOf(name) { return new Uint8Array(bytesOf(this.payload.colours[name])); }

  /** Shows the chosen class of the chosen picture. */
  async open() {
    const turn = ++this.turn, number = Number(this.picture.value || 0), { pictures, maps } = this.payload;
    const own = maps.filter((map) => map.picture === number), classes = new Map(own.map((map) => [map.target, map]));
    const target = classes.has(Number(this.class.value)) ? Number(this.class.value) : own[0]?.target;
    this.class.replaceChildren(...[...classes].map(([index, map]) => make("option", { value: index, selected: index === target }, `${map.label} ${show(map.score, 3)}`)));
    this.classLabel.hidden = classes.size < 2;
    const [picture, blank] = await Promise.all(["view", "blank"].map((name) => decode(bytesOf(pictures[number][name]))));
    if (turn !== this.turn) return;
    for (const tile of this.tiles) tile.face.close();
    this.tiles = own.filter((map) => map.target === target).map((map, i) => this.tileOf(map, i % MOST_COLOURS, picture, blank));
    this.place.replaceChildren(...this.tiles.map((tile) => tile.face.element));
    const random = this.tiles.find((tile) => tile.random)?.random;
    this.scrubber.set(this.tiles, random ? [{ name: "random pixels", kind: "random", curves: { [AVERAGE]: random } }] : []);
    this.card.replaceChildren(...this.tiles.flatMap((tile) => (tile.sentence ? [make("span", {}, make("b", {}, `${tile.name}: `), tile.sentence)] : [])));
    await this.paint();
  }

  tileOf(map, colour, picture, blank) {
    const { card } = map, face = new Face(this.lens, { name: map.method, colour, side: `${map.label} ${show(map.score, 3)}` });
    face.score.textContent = card ? `Ins-Del ${show(card.curves.ins_del)}` : "";
    face.score.hidden = !card;
    return {
      face, colour, picture, name: map.method, label: map.label, map: unpacked(map), isProbability: map.is_probability,
      curves: card ? { [AVERAGE]: card.curves } : {}, random: card?.random, sentence: card?.sentence, missing: NOT_MEASURED,
      cost: `${map.seconds.toFixed(2)} s`, referenceView: () => blank,
    };
  }

  async paint() {
    for (const tile of this.tiles) await tile.face.paint(tile.picture, tile.map, this.look, (name) => this.tableOf(name));
    for (const tile of this.tiles) tile.face.tell(null, tile.cost);
  }
}

export const view = (root, payload) => new Viewer(root, payload);
