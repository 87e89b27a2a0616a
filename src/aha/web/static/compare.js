// Maps side by side on linked views, of one model or of two, and the scrubber under them.

import { Stopped } from "./api.js";
import { SEARCH, Bound, RANDOM } from "./bounds.js";
import { $, make, say, showProgress } from "./dom.js";
import { askMaps, lens, sceneOf } from "./scene.js";
import { Scrubber } from "./scrubber.js";
import { MOST_METHODS, remember, state } from "./state.js";
import { Tile } from "./tile.js";

let tiles = [];
let places = []; // one for each model that is shown: { model, target, label, scene, side, isOther }
let former = []; // tiles that were removed: what they reached stays known
let bounds = []; // curves that say what is little and what is much
let generation = 0;
let scrubber;

const isFirst = (tile) => !tile.isOther;
export const mapKeys = () => tiles.filter((tile) => isFirst(tile) && tile.map).map((tile) => tile.map.key);

/** Methods whose maps are not there yet, or never will be. */
export const missing = () => tiles.filter((tile) => isFirst(tile) && !tile.map).map((tile) => tile.method);
/** When all maps that can be had are there. */
export const settled = () => Promise.all(tiles.filter(isFirst).map((tile) => tile.drawn));

/** Nothing of an earlier picture, model or class stays in sight; of the picture itself neither, if it is another one. */
export function clear({ isAnotherPicture = true } = {}) {
  generation++;
  for (const bound of bounds) bound.stop();
  [bounds, former] = [[], []];
  $("best-status").replaceChildren();
  if (isAnotherPicture && places.length > 1) { // what is beside what has to be found out first
    for (const tile of tiles) tile.close();
    tiles = [];
    return arrange();
  }
  if (isAnotherPicture) for (const place of places) place.scene = null;
  for (const tile of tiles) tile.blank();
  return changed();
}

/** Everything again, for other places: pictures in the eyes of one or two models, each with the class to explain. */
export async function reload(wanted) {
  clear({ isAnotherPicture: false });
  const turn = generation;
  if (!state.picture || !wanted.length) return;
  const scenes = await Promise.all(wanted.map((place) => sceneOf(state.picture, place.model)));
  if (turn !== generation) return;
  places = wanted.map((place, i) => ({ ...place, scene: scenes[i], isOther: i > 0, side: wanted.length > 1 ? place.model : "" }));
  for (const tile of tiles) tile.close();
  tiles = [];
  try {
    await Promise.all(places.map((place) => ask(place, state.methods, turn)));
  } catch (error) {
    if (turn === generation) arrange(); // without the tiles that are closed
    throw error;
  }
  if (turn === generation && !tiles.some((tile) => tile.method === RANDOM.method)) bounds.push(new Bound(RANDOM, places[0], changed));
}

/** Looks for an order of pixels that the score rewards, which takes a while: only when asked. */
async function lookForBest() {
  if (!places.length || bounds.some((bound) => bound.kind === SEARCH.kind)) return;
  if (!bounds.some((bound) => bound.kind === RANDOM.kind)) bounds.push(new Bound(RANDOM, places[0], changed)); // the floor of the band
  const tell = (...told) => $("best-status").replaceChildren(...told);
  const found = new Bound(SEARCH, places[0], changed, {
    onState: (job) => showProgress($("best-status"), job, () => found.stop()), onFound: () => tell("An order is found; its curves are measured …"),
  });
  bounds.push(found);
  const problem = await found.ready;
  if (!bounds.includes(found)) return;
  if (!found.map) bounds = bounds.filter((bound) => bound !== found);
  $("best-status").textContent = problem;
}

/** Tiles for the methods that the server takes on; a refused one leaves nothing but a line. */
async function ask(place, methods, turn) {
  const answers = methods.length ? await askMaps({ picture: state.picture, model: place.model, methods, target: place.target }) : [];
  if (turn !== generation) return false;
  const refused = answers.filter((answer) => answer.error);
  if (refused.length) say(refused.map((one) => (one.error.includes(one.method) ? one.error : `${one.method}: ${one.error}`)).join(" "), { calm: refused.length < answers.length });
  if (!place.isOther) state.methods = state.methods.filter((method) => !refused.some((one) => one.method === method));
  const accepted = answers.filter((answer) => !answer.error);
  const added = accepted.map((answer) => {
    const tile = new Tile(answer.method, colourOf(answer.method), place, { onChange: changed, onClose: () => remove(answer.method) });
    tiles.push(tile);
    return [tile, answer];
  });
  arrange();
  for (const [tile, answer] of added) tile.load(answer);
  return accepted.length > 0;
}

/** The same for a method on both models, and none twice. */
function colourOf(method) {
  const own = tiles.find((tile) => tile.method === method);
  return own?.colour ?? [...Array(MOST_METHODS).keys()].find((colour) => !tiles.some((tile) => tile.colour === colour)) ?? MOST_METHODS - 1;
}

function arrange() {
  const order = (tile) => places.indexOf(tile.place) * 100 + state.methods.indexOf(tile.method);
  tiles.sort((a, b) => order(a) - order(b));
  const groups = places.filter((place) => tiles.some((tile) => tile.place === place)).map((place) => {
    const own = make("div", { class: "tiles" }, ...tiles.filter((tile) => tile.place === place).map((tile) => tile.element));
    const head = place.side ? [make("h2", { class: "group" }, `${place.model}: ${place.label}`)] : [];
    return make("section", { data: { model: place.model } }, ...head, own);
  });
  $("tiles").replaceChildren(...groups);
  changed();
}

function remove(method) {
  state.methods = state.methods.filter((one) => one !== method);
  const removed = tiles.filter((one) => one.method === method);
  for (const tile of removed) tile.close();
  former.push(...removed);
  tiles = tiles.filter((tile) => tile.method !== method);
  arrange();
}

/** Adds a method; true if the server took it on. */
export async function add(method) {
  if (state.methods.includes(method)) { say(`${method} is there already`, { calm: true }); return false; }
  if (state.methods.length >= MOST_METHODS) { say(`${MOST_METHODS} methods are as many as the page shows; remove one first`); return false; }
  say("");
  state.methods = [...state.methods, method];
  remember();
  if (!places.length) return true;
  const turn = generation;
  try {
    const taken = await Promise.all(places.map((place) => ask(place, [method], turn)));
    return taken[0];
  } catch (error) {
    state.methods = state.methods.filter((one) => one !== method);
    say(error.message);
    return false;
  }
}

function changed() {
  remember();
  scrubber.set([...tiles], bounds, former);
  const link = $("download"), keys = mapKeys();
  if (keys.length) link.href = `/api/bundle?maps=${keys.join(",")}`;
  else link.removeAttribute("href");
}

const repaint = () => { remember(); for (const tile of tiles) tile.paint().catch((error) => say(error.message)); };

function syncTools() {
  $("opacity-label").hidden = state.mode !== "overlay";
  $("top-label").hidden = state.mode !== "mask";
  $("top-out").textContent = `${state.top} %`;
}

export function start(about) {
  if (!about.references.includes(state.reference)) state.reference = about.references[0];
  scrubber = new Scrubber($("scrubber"), lens, {
    choice: state, references: about.references, name: "page", onChange: remember,
    onReference: () => { for (const one of [...tiles, ...bounds]) Promise.resolve(one.refer(state.reference)).catch((error) => error instanceof Stopped || say(error.message)); },
  });
  $("best").addEventListener("click", lookForBest);
  $("cmap").replaceChildren(make("option", { value: "" }, "automatic"), ...about.colour_maps.map((name) => make("option", { value: name }, name)));
  for (const [id, name, read] of [["mode", "mode", String], ["opacity", "opacity", Number], ["top", "top", Number], ["cmap", "cmap", String], ["signed", "signed", String]]) {
    $(id).value = state[name];
    $(id).addEventListener("input", () => { state[name] = read($(id).value); syncTools(); repaint(); });
  }
  $("tools").addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = $("method").value.trim();
    if (text && await add(text)) $("method").value = "";
  });
  lens.onCursor((cursor) => { for (const tile of tiles) tile.face.tell(cursor, tile.map ? `${tile.map.seconds.toFixed(1)} s` : ""); });
  syncTools();
}

/** For keys, which may come before the page has begun: the other sequence, or some more or fewer pixels. */
export const nudge = (by) => scrubber?.move(state.share + by);
export const flip = () => scrubber?.flip();
