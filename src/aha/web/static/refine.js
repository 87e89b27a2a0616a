// AHA's refinement: the map after 0 to 5 gradient steps, and what each step is worth.

import { ask, get, Stopped } from "./api.js";
import { $, make, progressRow, show } from "./dom.js";
import { View } from "./lens.js";
import { isSigned, paintMap } from "./pixels.js";
import { Plot } from "./plot.js";
import { colourTable, modelView, withNumbers } from "./scene.js";
import { remember, state } from "./state.js";

let parts, controller, steps = [], generation = 0;

function build(about) {
  const canvas = make("canvas", { id: "refine-view", width: 480, height: 480, tabIndex: 0, "aria-label": "Refined map" });
  const slider = make("input", { type: "range", id: "step", min: 0, max: about.rounds, step: 1, value: state.step, on: { input: () => {
    state.step = Number(slider.value);
    remember();
    showStep();
  } } });
  parts = {
    canvas, slider, view: new View(canvas), reading: make("p", { class: "reading", id: "refine-reading" }),
    status: make("div", { id: "refine-status" }), body: make("tbody"), place: make("div", { class: "plot" }),
    legend: make("div", { class: "legend" }),
    start: make("button", { type: "button", class: "primary", id: "refine-start", on: { click: compute } }, "Refine"),
    note: make("p", { class: "note", id: "refine-note" }),
  };
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...["Steps T", "Ins-Del", "soft loss"].map((head) => make("th", {}, head)))), parts.body);
  $("refine").classList.add("panel");
  parts.result = make("div", { class: "scrubber", hidden: true }, make("div", { class: "scrub-picture" }, canvas),
    make("div", { class: "scrub-side" }, parts.reading, make("label", { class: "wide" }, "Gradient steps", slider), table, parts.place, parts.legend));
  $("refine").replaceChildren(parts.note, make("div", { class: "row" }, parts.start), parts.status, parts.result);
  parts.plot = new Plot(parts.place);
}

export function open(about, model) {
  if (!parts) build(about);
  const has = model.explainers.length > 0;
  parts.note.textContent = has
    ? "A trained explainer draws its map in one pass. A few gradient steps, for this picture alone, sharpen it."
    : `No explainer belongs to ${model.name}. Train one with "aha train", and start with --explainer FOLDER.`;
  parts.start.hidden = !has || !state.picture;
  parts.result.hidden = !steps.length;
}

/** Forgets what belongs to another picture, class or model. */
export function reset() {
  generation++;
  controller?.abort();
  steps = [];
  if (parts) { parts.result.hidden = true; parts.status.replaceChildren(); }
}

async function compute() {
  const turn = ++generation;
  controller?.abort();
  controller = new AbortController();
  const { signal } = controller;
  const onState = (job) => parts.status.replaceChildren(progressRow(job, () => { controller.abort(); parts.status.textContent = "Cancelled."; }));
  try {
    const found = await ask("/api/refinements", { picture: state.picture, model: state.model, target: state.target }, { onState, signal });
    const loaded = await Promise.all(found.steps.map(async (step) => ({
      ...step,
      map: await withNumbers(await get(`/api/results/${step.map}`)),
      curves: await get(`/api/results/${step.curves}`),
    })));
    if (turn !== generation) return;
    steps = loaded;
    parts.status.replaceChildren();
    parts.result.hidden = false;
    showStep();
  } catch (error) {
    if (!(error instanceof Stopped)) parts.status.replaceChildren(make("span", { class: "failed" }, error.message));
  }
}

async function showStep() {
  const chosen = Math.min(state.step, steps.length - 1), step = steps[chosen];
  if (!step) return;
  parts.slider.max = steps.length - 1;
  const picture = await modelView(state.picture, state.model), signed = isSigned(step.map, state.signed);
  const table = await colourTable(state.cmap || (signed ? "RdBu_r" : "inferno"));
  parts.view.show(paintMap(picture, step.map, { ...state, mode: "overlay", signed, table }));
  const score = (one) => one.curves.references.average.ins_del;
  parts.reading.textContent = `T = ${step.step}: Ins-Del ${show(score(step), 3)}` + (chosen ? `, ${show(score(step) - score(steps[0]), 3)} over T = 0` : "");
  parts.body.replaceChildren(...steps.map((one) => make("tr", { "aria-current": String(one === step) },
    make("td", {}, String(one.step)), make("td", {}, show(score(one), 3)), make("td", {}, show(one.loss, 3)))));
  const average = step.curves.references.average;
  parts.plot.draw([
    { colour: 0, name: "deletion", fractions: average.fractions, heights: average.deletion, isMain: true },
    { colour: 1, name: "insertion", fractions: average.fractions, heights: average.insertion, isMain: true },
  ], { isProbability: step.curves.is_probability, label: "share of pixels deleted or inserted" });
  parts.legend.replaceChildren(...["Deletion", "Insertion"].map((name, i) => make("span", { class: `c${i}` }, `${name} at T = ${step.step}`)));
}
