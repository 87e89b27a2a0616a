// AHA's refinement: the map after 0 to 5 gradient steps, each shown as it comes, and what each step is worth.

import { ask, get, Stopped } from "./api.js";
import { $, make, say, show, showProgress } from "./dom.js";
import { View } from "./lens.js";
import { colourMapOf } from "./face.js";
import { isSigned, paintMap } from "./pixels.js";
import { Plot } from "./plot.js";
import { colourTable, lens, modelView, withNumbers } from "./scene.js";
import { remember, state } from "./state.js";

let parts, controller, steps = [], generation = 0, hasChosen = false;

function build(about) {
  const canvas = make("canvas", { id: "refine-view", width: 480, height: 480, tabIndex: 0, "aria-label": "Refined map" });
  const slider = make("input", { type: "range", id: "step", min: 0, max: about.rounds, step: 1, value: state.step, on: { input: () => {
    state.step = Number(slider.value);
    hasChosen = true; // steps that come later do not take it away
    remember();
    showStep().catch((error) => say(error.message));
  } } });
  parts = {
    canvas, slider, view: new View(canvas, lens), reading: make("p", { class: "reading", id: "refine-reading" }),
    status: make("div", { id: "refine-status" }), body: make("tbody"), place: make("div", { class: "plot" }),
    legend: make("div", { class: "legend" }),
    start: make("button", { type: "button", class: "primary", id: "refine-start", on: { click: compute } }, "Refine"),
    note: make("p", { class: "note", id: "refine-note" }), rounds: about.rounds,
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
    ? "A trained explainer draws its map in a single pass. A few gradient steps on this image refine it."
    : `No explainer belongs to ${model.name}. Train one with "aha train", and start with --explainer FOLDER.`;
  parts.start.hidden = !has || !state.picture;
  parts.result.hidden = !steps.length;
}

/** Forgets what belongs to another picture, class or model. */
export function reset() {
  generation++;
  controller?.abort();
  steps = [];
  if (parts) { parts.result.hidden = true; parts.status.replaceChildren(); parts.view.clear(); }
}

async function compute() {
  const turn = ++generation;
  controller?.abort();
  controller = new AbortController();
  [steps, hasChosen] = [[], false];
  const { signal } = controller;
  const cancel = () => { controller.abort(); parts.status.textContent = "Cancelled."; };
  const onState = (job) => {
    showProgress(parts.status, job, cancel, running(job));
    take(job.parts ?? [], turn);
  };
  try {
    const found = await ask("/api/refinements", { picture: state.picture, model: state.model, target: state.target }, { onState, signal });
    await take(found.steps, turn);
    if (turn === generation) parts.status.replaceChildren();
  } catch (error) {
    if (turn === generation && !(error instanceof Stopped)) parts.status.replaceChildren(make("span", { class: "failed" }, error.message));
  }
}

/** Which step is at work, how far it is by itself, and at what: steps are equal shares of the whole job. */
function running(job) {
  const whole = (job.progress ?? 0) * (parts.rounds + 1), step = Math.min(parts.rounds, Math.floor(whole + 0.001)); // shares are rounded
  const share = Math.round(100 * Math.max(0, whole - step)), hasMap = (job.parts ?? []).length > step;
  return make("p", { class: "note", id: "refine-running" }, job.status === "running" ? `T = ${step}, ${share} %: ${hasMap ? "its curves are measured" : "its map is drawn"}` : "");
}

let taking = Promise.resolve();
/** Fetches what is new, in its order, and shows the last step: its map at once, its curves when they are measured. */
function take(found, turn) {
  taking = taking.then(async () => {
    for (const [place, step] of found.entries()) {
      const known = steps[place];
      if (known && (known.curves || !step.curves)) continue;
      const [map, curves] = await Promise.all([
        known?.map ?? get(`/api/results/${step.map}`).then(withNumbers), step.curves && get(`/api/results/${step.curves}`),
      ]);
      if (turn !== generation) return;
      steps[place] = { ...step, map, curves };
      if (!hasChosen) state.step = steps.length - 1;
      parts.result.hidden = false;
      await showStep();
    }
  }).catch((error) => { if (turn === generation) parts.status.textContent = error.message; });
  return taking;
}

async function showStep() {
  const chosen = Math.min(state.step, steps.length - 1), step = steps[chosen], turn = generation;
  if (!step) return;
  [parts.slider.max, parts.slider.value] = [steps.length - 1, chosen];
  const signed = isSigned(steps[0].map, state.signed); // of all steps alike, so that colours mean the same
  const picture = await modelView(state.picture, state.model), table = await colourTable(colourMapOf(state, signed));
  if (turn !== generation || step !== steps[Math.min(state.step, steps.length - 1)]) return; // another one was chosen meanwhile
  parts.view.show(paintMap(picture, step.map, { ...state, mode: "overlay", signed, table }));
  const score = (one) => one.curves.references.average.ins_del, told = (one) => (one.curves ? show(score(one), 3) : "…");
  const gain = chosen && step.curves && steps[0].curves ? `, ${show(score(step) - score(steps[0]), 3)} over T = 0` : "";
  parts.reading.textContent = `T = ${step.step}: Ins-Del ${told(step)}${gain}`;
  parts.body.replaceChildren(...steps.map((one) => make("tr", { "aria-current": String(one === step) },
    make("td", {}, String(one.step)), make("td", {}, told(one)), make("td", {}, show(one.loss, 3)))));
  const measured = step.curves ? step : steps.findLast((one) => one.curves); // the step before, until its own are there
  parts.place.hidden = parts.legend.hidden = !measured;
  if (!measured) return;
  const average = measured.curves.references.average;
  parts.plot.draw([
    { colour: 0, name: "deletion", fractions: average.fractions, heights: average.deletion, isMain: true },
    { colour: 1, name: "insertion", fractions: average.fractions, heights: average.insertion, isMain: true },
  ], { isProbability: measured.curves.is_probability, label: "share of pixels deleted or inserted" });
  parts.legend.replaceChildren(...["Deletion", "Insertion"].map((name, i) => make("span", { class: `c${i}` }, `${name} at T = ${measured.step}`)));
}
