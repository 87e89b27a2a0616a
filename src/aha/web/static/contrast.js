// Why this class rather than that one: how the classes share the picture.

import { ask, bytes, Stopped } from "./api.js";
import { $, make, say, short, show, showProgress } from "./dom.js";
import { Change } from "./change.js";
import { pixelAt, View } from "./lens.js";
import { floats, paintMap, paintWinners } from "./pixels.js";
import { colourTable, lens, modelView } from "./scene.js";
import { remember, state } from "./state.js";

let parts, controller, found = null, generation = 0, labelOf = String;

function tile(id, title) {
  const canvas = make("canvas", { id, width: 480, height: 480, tabIndex: 0, "aria-label": title });
  const caption = make("div", { class: "title" }, title), value = make("div", { class: "facts" });
  return { view: new View(canvas, lens), caption, value, element: make("figure", { class: "tile" }, canvas, make("figcaption", {}, caption, value)) };
}

function build() {
  const method = make("input", { id: "rule", value: state.rule, spellcheck: false, autocomplete: "off" });
  method.setAttribute("list", "method-hints");
  method.addEventListener("change", () => { state.rule = method.value.trim() || "grad_cam"; remember(); compute(); });
  parts = {
    method, status: make("div", { id: "contrast-status" }), legend: make("div", { class: "legend", id: "contrast-legend" }),
    classes: make("p", { class: "reading", id: "contrast-classes" }),
    first: make("select", { id: "first", on: { change: choose } }), second: make("select", { id: "second", on: { change: choose } }),
    change: new Change(),
    winners: tile("winners", "Who wins where"), rather: tile("rather", ""), instead: tile("instead", ""),
  };
  $("contrast").classList.add("panel");
  $("contrast").replaceChildren(
    make("p", { class: "note" }, "Classes compete for every pixel (VAR). “Why not?” next to a class contrasts it with the predicted class; tick more to compare several."),
    make("div", { class: "row wrap" }, make("label", {}, "Method ", method), make("label", {}, "Why ", parts.first), make("label", {}, "rather than ", parts.second)),
    parts.classes, parts.status, parts.legend,
    make("div", { class: "tiles" }, parts.rather.element, parts.instead.element, parts.winners.element), parts.change.element);
  lens.onCursor((cursor) => cursor && found && tell(pixelAt(cursor, found.width, found.height)));
}

export function open(naming) {
  labelOf = naming;
  if (!parts) build();
  if (state.picture && state.target !== null) compute();
}

export function reset() {
  generation++;
  controller?.abort();
  found = null;
  if (!parts) return;
  parts.change.reset();
  for (const place of [parts.winners, parts.rather, parts.instead]) { place.view.clear(); place.value.textContent = ""; place.values = null; }
  for (const place of [parts.classes, parts.status, parts.legend, parts.first, parts.second, parts.rather.caption, parts.instead.caption]) place.replaceChildren();
}

function compared(best) {
  // What the model says comes first, unless it is not among those to compare.
  const chosen = state.rivals.length >= 2 ? state.rivals : [...new Set([state.target, ...state.rivals, ...best])].slice(0, 2);
  const head = [best[0], state.target].find((index) => chosen.includes(index)) ?? chosen[0];
  return [head, ...chosen.filter((index) => index !== head)];
}

let best = [];
export const setBest = (classes) => { best = classes; };

async function compute() {
  reset();
  const turn = generation;
  controller = new AbortController();
  const classes = compared(best);
  if (classes.length < 2) return;
  parts.classes.textContent = classes.map(labelOf).join(" against ");
  name(classes.map(labelOf));
  const onState = (job) => showProgress(parts.status, job, () => { controller.abort(); parts.status.textContent = "Cancelled."; });
  try {
    const question = { picture: state.picture, model: state.model, method: state.rule, classes };
    const record = await ask("/api/contrasts", question, { onState, signal: controller.signal });
    const [maps, shares, won] = await Promise.all(["maps", "shares", "won"].map((name) => bytes(`/api/results/${record.key}/${name}`)));
    if (turn !== generation) return;
    found = { ...record, maps: floats(maps, record.units.maps), shares: floats(shares), won: floats(won, record.units.won) };
    parts.status.replaceChildren();
    await paint();
    askChange();
  } catch (error) {
    if (turn === generation && !(error instanceof Stopped)) parts.status.replaceChildren(make("span", { class: "failed" }, error.message));
  }
}

/** What there is to choose from: the first class rather than the second. */
function name(labels) {
  [parts.first, parts.second].forEach((place, chosen) => place.replaceChildren(...labels.map((label, i) => make("option", { value: i, selected: i === chosen }, label))));
}

function askChange() {
  const [first, second] = [parts.first, parts.second].map((choice) => found?.classes[Number(choice.value)]?.index);
  const colours = [parts.first, parts.second].map((choice) => found?.colours[Number(choice.value)]);
  if (found && first !== second) parts.change.ask(found.key, first, second, colours);
  else parts.change.reset();
}

/** Another pair of the classes that were compared. */
function choose() {
  paint().catch((error) => say(error.message));
  askChange();
}

async function paint() {
  if (!found) return;
  const turn = generation, picture = await modelView(state.picture, state.model), table = await colourTable("inferno");
  if (turn !== generation) return;
  const count = found.classes.length, size = found.width * found.height;
  parts.winners.view.show(paintWinners(picture, found.maps, found.shares, count, found.colours, Math.max(0.8, state.opacity)));
  const pair = [Number(parts.first.value), Number(parts.second.value)];
  for (const [place, own, other] of [[parts.rather, pair[0], pair[1]], [parts.instead, pair[1], pair[0]]]) {
    const values = found.won.subarray(own * size, (own + 1) * size);
    const high = values.reduce((most, value) => Math.max(most, value), 0);
    place.caption.textContent = `Why ${found.classes[own].label} rather than ${found.classes[other].label}`;
    place.view.show(paintMap(picture, { values, low: 0, high, limit: high }, { mode: "overlay", opacity: state.opacity, signed: false, table }));
    place.values = values;
  }
  parts.legend.replaceChildren(...found.classes.map((one, i) => {
    const entry = make("span", {}, `${one.label} ${show(one.score)}`);
    entry.style.setProperty("--own", `rgb(${found.colours[i].join(" ")})`);
    return entry;
  }));
}

function tell(index) {
  const size = found.width * found.height;
  parts.winners.value.textContent = found.classes.map((one, k) => `${one.label} ${show(found.shares[k * size + index])}`).join(", ");
  for (const place of [parts.rather, parts.instead]) place.value.textContent = place.values ? short(place.values[index]) : "";
}
