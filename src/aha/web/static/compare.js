// Maps side by side on linked views, and the scrubber: the metric made visible.

import { Stopped } from "./api.js";
import { $, make, progressRow, say, short, show } from "./dom.js";
import { onCursor, View } from "./lens.js";
import { isSigned, paintMap, paintPerturbed } from "./pixels.js";
import { legendEntry, Plot } from "./plot.js";
import { askCurves, askMap, colourTable, modelView, referenceView, STANDARD } from "./scene.js";
import { MOST_METHODS, remember, state } from "./state.js";

const tiles = [];
let scene = null; // { picture, references, out }
let generation = 0;
let plot, scrubView, isDue = false;
let label = "";

export const mapKeys = () => tiles.filter((tile) => tile.map).map((tile) => tile.map.key);

class Tile {
  constructor(method, colour) {
    [this.method, this.colour] = [method, colour];
    this.canvas = make("canvas", { width: 480, height: 480, tabIndex: 0, "aria-label": `Map of ${method}` });
    this.value = make("span", { class: "value" });
    this.score = make("b", { class: "score" }, "Ins-Del …");
    this.status = make("div", { class: "status" });
    this.bar = make("canvas", { class: "scale", width: 256, height: 1 });
    const close = make("button", { type: "button", class: "close", title: "Remove", "aria-label": `Remove ${method}`, on: { click: () => remove(this) } }, "×");
    this.element = make("figure", { class: `tile c${colour}`, data: { method } }, this.canvas,
      make("figcaption", {}, make("div", { class: "title" }, make("span", { class: "name" }, method), close),
        this.bar, make("div", { class: "facts" }, this.score, this.value), this.status));
    this.view = new View(this.canvas);
  }

  stop() { this.controller?.abort(); }

  async load(turn) {
    this.stop();
    this.controller = new AbortController();
    [this.map, this.curves] = [null, {}];
    this.score.textContent = "Ins-Del …";
    const { signal } = this.controller;
    const onState = (job) => this.status.replaceChildren(progressRow(job, () => this.cancel()));
    const question = { picture: state.picture, model: state.model, method: this.method, target: state.target };
    try {
      this.view.show(scene.picture);
      const map = await askMap(question, { onState, signal });
      if (turn !== generation) return;
      this.map = map;
      this.status.replaceChildren(...(map.flat ? [make("span", { class: "failed" }, "This map is flat: it tells no pixel from another.")] : []));
      await this.paint();
      changed();
      // One reference at a time, the one that is looked at first: the others can follow.
      for (const reference of new Set([state.reference, ...STANDARD])) await this.measure(reference, { onState, signal }, turn);
    } catch (error) {
      if (turn === generation && !(error instanceof Stopped)) this.fail(error.message);
    }
  }

  async measure(reference, options, turn) {
    if (!this.map || reference in this.curves) return;
    const found = await askCurves(this.map.key, [reference], options);
    if (turn !== generation) return;
    this.isProbability = found.is_probability;
    this.curves[reference] = found.references[reference];
    const scores = STANDARD.map((name) => this.curves[name]?.ins_del);
    if (!scores.includes(undefined)) {
      this.score.textContent = `Ins-Del ${show(scores.reduce((sum, one) => sum + one, 0) / scores.length)}`;
      this.score.title = `mean over ${STANDARD.join(", ")}`;
    }
    if (!this.map.flat) this.status.replaceChildren();
    changed();
  }

  cancel() {
    this.stop();
    this.status.replaceChildren(make("div", { class: "progress" }, "Cancelled.",
      make("button", { type: "button", on: { click: () => this.load(generation) } }, "Try again")));
  }

  fail(line) {
    this.score.textContent = "";
    this.status.replaceChildren(make("span", { class: "failed" }, line));
  }

  async paint() {
    if (!this.map) return;
    const signed = isSigned(this.map, state.signed);
    const table = await colourTable(state.cmap || (signed ? "RdBu_r" : "inferno"));
    this.view.show(paintMap(scene.picture, this.map, { ...state, signed, table }));
    const strip = new ImageData(256, 1);
    for (let i = 0; i < 256; i++) strip.data.set([table[3 * i], table[3 * i + 1], table[3 * i + 2], 255], 4 * i);
    this.bar.getContext("2d").putImageData(strip, 0, 0);
    this.bar.title = signed ? `from ${short(-this.map.limit)} to ${short(this.map.limit)}` : `from ${short(this.map.low)} to ${short(this.map.high)}`;
  }
}

/** Everything again, for another picture, model or class. */
export async function reload(labelOf) {
  const turn = ++generation;
  label = labelOf;
  for (const tile of tiles) tile.stop();
  if (!state.picture || state.target === null) return;
  const picture = await modelView(state.picture, state.model);
  if (turn !== generation) return;
  scene = { picture, references: {}, out: new ImageData(picture.width, picture.height) };
  arrange();
  changed();
  for (const tile of tiles) tile.load(turn);
}

/** Tiles for exactly the methods of the state. */
function arrange() {
  for (const tile of tiles.filter((one) => !state.methods.includes(one.method))) drop(tile);
  for (const method of state.methods) {
    if (tiles.some((tile) => tile.method === method)) continue;
    const free = [...Array(MOST_METHODS).keys()].find((colour) => !tiles.some((tile) => tile.colour === colour));
    tiles.push(new Tile(method, free));
  }
  tiles.sort((a, b) => state.methods.indexOf(a.method) - state.methods.indexOf(b.method));
  $("tiles").replaceChildren(...tiles.map((tile) => tile.element));
  state.by = Math.min(state.by, Math.max(0, tiles.length - 1));
  $("by").replaceChildren(...tiles.map((tile, i) => make("option", { value: i, selected: i === state.by }, tile.method)));
}

function drop(tile) {
  tile.stop();
  tile.view.close();
  tiles.splice(tiles.indexOf(tile), 1);
}

function remove(tile) {
  state.methods = state.methods.filter((method) => method !== tile.method);
  arrange();
  changed();
}

export function add(method) {
  if (state.methods.includes(method)) return say(`${method} is there already`, { calm: true });
  if (state.methods.length >= MOST_METHODS) return say(`${MOST_METHODS} methods are as many as the page shows; remove one first`);
  say("");
  state.methods = [...state.methods, method];
  remember();
  if (!scene) return undefined;
  arrange();
  changed();
  return tiles.find((tile) => tile.method === method)?.load(generation);
}

/** The curves, the legend and the perturbed picture, after anything they depend on. */
function changed() {
  remember();
  const measured = tiles.filter((tile) => tile.curves?.[state.reference]);
  const side = state.kind === "delete" ? "deletion" : "insertion";
  const main = tiles[state.by];
  plot.draw(measured.map((tile) => ({
    colour: tile.colour, name: tile.method, isMain: tile === main,
    fractions: tile.curves[state.reference].fractions, heights: tile.curves[state.reference][side],
  })), { isProbability: measured[0]?.isProbability ?? true, label: state.kind === "delete" ? "share of pixels deleted" : "share of pixels inserted" });
  $("legend").replaceChildren(...tiles.map((tile) => legendEntry(tile.colour, tile.method, tile.curves?.[state.reference]?.ins_del ?? null)));
  const link = $("download"), keys = mapKeys();
  link.setAttribute("aria-disabled", String(!keys.length));
  if (keys.length) link.href = `/api/bundle?maps=${keys.join(",")}`;
  scrub();
}

/** The picture and the markers for the current share of pixels; once per frame, however fast the slider. */
export function scrub() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(async () => {
    isDue = false;
    $("scrub").value = Math.round(state.share * 1000);
    const heights = plot.mark(state.share);
    const main = tiles[state.by];
    tellReading(main, heights);
    if (!scene || !main?.map) return;
    const { reference } = state;
    if (!scene.references[reference]) {
      const own = scene;
      own.references[reference] = await referenceView(state.picture, state.model, reference).catch((error) => say(error.message));
      if (own !== scene || !own.references[reference]) return;
    }
    const count = Math.round(state.share * main.map.ranks.length);
    // In this very frame, so that picture and marker never part.
    scrubView.put(paintPerturbed(scene.picture, scene.references[reference], main.map.ranks, count, state.kind, scene.out));
    scrubView.draw();
  });
}

function tellReading(main, heights) {
  const percent = `${(state.share * 100).toFixed(state.share * 100 < 10 ? 1 : 0)} %`;
  const place = plot.lines?.findIndex((line) => line.name === main?.method) ?? -1;
  const what = state.kind === "delete" ? `Without the top ${percent} of pixels` : `With only the top ${percent} of pixels`;
  $("reading").replaceChildren(...(place < 0 ? [`${what}: measuring …`] : [`${what}: ${label} `, make("b", {}, show(heights[place], 3))]));
}

const repaint = () => { remember(); for (const tile of tiles) tile.paint(); };

function syncTools() {
  $("opacity-label").hidden = state.mode !== "overlay";
  $("top-label").hidden = state.mode !== "mask";
  $("top-out").textContent = `${state.top} %`;
}

export function start(about) {
  plot = new Plot($("plot"), (share) => { state.share = share; remember(); scrub(); });
  scrubView = new View($("scrub-view"));
  $("cmap").replaceChildren(make("option", { value: "" }, "automatic"), ...about.colour_maps.map((name) => make("option", { value: name }, name)));
  $("reference").replaceChildren(...about.references.map((name) => make("option", { value: name }, name)));
  for (const [id, name, read] of [["mode", "mode", String], ["opacity", "opacity", Number], ["top", "top", Number], ["cmap", "cmap", String], ["signed", "signed", String]]) {
    $(id).value = state[name];
    $(id).addEventListener("input", () => { state[name] = read($(id).value); syncTools(); repaint(); });
  }
  if (!about.references.includes(state.reference)) state.reference = about.references[0];
  $("reference").value = state.reference;
  $("reference").addEventListener("change", () => {
    state.reference = $("reference").value;
    changed();
    for (const tile of tiles) {
      const options = { signal: tile.controller?.signal, onState: (job) => tile.status.replaceChildren(progressRow(job, () => tile.cancel())) };
      tile.measure(state.reference, options, generation).catch((error) => error instanceof Stopped || tile.fail(error.message));
    }
  });
  $("by").addEventListener("change", () => { state.by = Number($("by").value); changed(); });
  for (const radio of document.getElementsByName("kind")) {
    radio.checked = radio.value === state.kind;
    radio.addEventListener("change", () => { state.kind = radio.value; changed(); });
  }
  $("scrub").addEventListener("input", () => { state.share = $("scrub").value / 1000; remember(); scrub(); });
  $("tools").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = $("method").value.trim();
    if (text) { $("method").value = ""; add(text); }
  });
  onCursor((cursor) => {
    for (const tile of tiles) {
      const at = cursor && tile.map ? tile.map.values[cursor.y * tile.map.width + cursor.x] : null;
      tile.value.textContent = at === null || at === undefined ? (tile.map ? `${tile.map.seconds.toFixed(1)} s` : "") : short(at);
    }
  });
  syncTools();
}

/** For keys: the other sequence, or some more or fewer pixels. */
export function nudge(by) {
  state.share = Math.min(1, Math.max(0, state.share + by));
  remember();
  scrub();
}

export function flip() {
  state.kind = state.kind === "delete" ? "insert" : "delete";
  for (const radio of document.getElementsByName("kind")) radio.checked = radio.value === state.kind;
  changed();
}
