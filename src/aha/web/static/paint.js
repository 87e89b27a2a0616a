// Brushing pixels away, and watching what the model says while the brush still moves.

import { ask, Stopped } from "./api.js";
import { Cells } from "./brush.js";
import { $, make, say, show } from "./dom.js";
import { View } from "./lens.js";
import { lens, sceneOf } from "./scene.js";
import { session } from "./session.js";
import { state } from "./state.js";

const MOST_UNDO = 40;
let parts, scene = null, mask = null, undo = [], before = null, generation = 0, isAsking = false, isDirty = false;
let labelOf = String;

/** Of the brush, in pixels of the picture. */
const radius = () => (Number(parts.size.value) / 100) * scene.picture.width;

/** A view in which dragging paints instead of moving. */
class Brush extends View {
  constructor(canvas, shared) {
    super(canvas, shared);
    this.isBrushed = true;
    canvas.title = "Drag to brush pixels away";
  }

  press(event) {
    super.press(event);
    if (!mask || this.pointers.size > 1) return;
    undo = [...undo, mask.values.slice()].slice(-MOST_UNDO);
    this.stroke(event, event);
  }

  drag(event, from) {
    if (this.pointers.size > 1) super.drag(event, from);
    else {
      this.stroke({ clientX: from[0], clientY: from[1] }, event);
      this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
    }
  }

  stroke(from, to) {
    mask.stroke(this.place(from), this.place(to), radius(), parts.tools.find((one) => one.checked).value === "away" ? 1 : 0);
    changed();
  }

  mark(context, x, y, scale) {
    context.moveTo(x + radius() * scale, y);
    context.arc(x, y, radius() * scale, 0, 2 * Math.PI);
  }
}

function build(about) {
  const canvas = make("canvas", { id: "paint-view", width: 640, height: 640, tabIndex: 0, "aria-label": "The image to paint on" });
  parts = {
    view: new Brush(canvas, lens),
    size: make("input", { type: "range", id: "brush", min: 1, max: 25, step: 0.5, value: 6, on: { input: () => lens.redraw() } }),
    tools: [["away", "Brush away"], ["back", "Bring back"]].map(([value]) => make("input", { type: "radio", name: "brush", value, checked: value === "away" })),
    reference: make("select", { id: "paint-reference", on: { change: () => begin() } }, ...about.references.map((name) => make("option", { value: name, selected: name === "blur" }, name))),
    reading: make("p", { class: "reading", id: "paint-reading", "aria-live": "polite" }),
    note: make("p", { class: "note", id: "paint-note" }), classes: make("ol", { class: "classes bars", id: "paint-classes" }),
  };
  const tools = parts.tools.map((radio, i) => make("label", {}, radio, ["Brush away", "Bring back"][i]));
  $("paint").classList.add("panel");
  $("paint").replaceChildren(
    make("p", { class: "note" }, "Brush pixels away and watch the prediction. Which pixels does the model need?"), parts.reading,
    make("div", { class: "scrubber" }, make("div", { class: "scrub-picture" }, canvas), make("div", { class: "scrub-side" },
      make("div", { class: "row wrap" }, make("fieldset", { class: "switch" }, make("legend", { class: "away" }, "Brush"), ...tools),
        make("label", {}, "against ", parts.reference)),
      make("label", { class: "wide" }, "Size", parts.size),
      make("div", { class: "row wrap" },
        make("button", { type: "button", id: "paint-undo", on: { click: () => { if (undo.length) { mask.values = undo.pop(); changed(); } } } }, "Undo"),
        make("button", { type: "button", id: "paint-clear", on: { click: () => { if (mask) { undo = [...undo, mask.values.slice()]; mask.values.fill(0); changed(); } } } }, "Bring all back")),
      parts.classes, parts.note)));
}

export function open(about, naming) {
  labelOf = naming;
  if (!parts) build(about);
  if (state.picture && !scene) begin();
}

/** Forgets what belongs to another picture, class or model. */
export function reset() {
  generation++;
  [scene, mask, undo, before] = [null, null, [], null];
  if (!parts) return;
  parts.view.clear();
  for (const place of [parts.reading, parts.classes, parts.note]) place.replaceChildren();
}

/** A picture of which nothing is gone, or the same strokes against another reference. */
async function begin() {
  const turn = ++generation;
  try {
    const found = await sceneOf(state.picture, state.model);
    const blank = await found.reference(parts.reference.value);
    if (turn !== generation || !blank) return;
    const { width, height } = found.picture, cells = new Cells(found.picture);
    scene = { ...found, blank, out: new ImageData(width, height) };
    if (!mask?.fits(cells)) [mask, before] = [cells, null];
    changed();
  } catch (error) { if (turn === generation) say(error.message); }
}

function changed() {
  paint();
  tell();
}

function paint() {
  const { picture, blank, out } = scene, image = new Uint32Array(picture.data.buffer), empty = new Uint32Array(blank.data.buffer);
  const to = new Uint32Array(out.data.buffer), { width, height } = picture;
  for (let y = 0, i = 0; y < height; y++) {
    for (let x = 0; x < width; x++, i++) to[i] = mask.at(x, y) ? empty[i] : image[i];
  }
  parts.view.show(out);
}

/** Asks the model, one question at a time: what was painted meanwhile is asked about next. */
async function tell() {
  isDirty = true;
  if (isAsking) return;
  isAsking = true;
  while (isDirty && scene) {
    isDirty = false;
    const turn = generation;
    try {
      const question = { picture: state.picture, model: state.model, ...mask.packed(), reference: parts.reference.value, classes: [state.target] };
      const found = await ask("/api/paintings", question, { onState: (job) => { parts.note.textContent = job.status === "waiting" && job.ahead ? "The model is busy with a map; it answers as soon as that is done." : ""; } });
      if (turn === generation) report(found);
    } catch (error) { if (turn === generation && !(error instanceof Stopped)) say(error.message); }
  }
  isAsking = false;
}

/** Digits enough to see it move, however small it is. */
const precise = (score) => (Math.abs(score) < 0.01 ? score.toPrecision(3) : show(score, 3));

function report(found) {
  if (!found.share) before = found;
  const [own] = found.classes, first = before?.classes.find((one) => one.index === own.index);
  const gone = `${(100 * found.share).toFixed(found.share < 0.1 ? 1 : 0)} %`;
  parts.reading.replaceChildren(`${found.share ? `Without ${gone}` : "With all"} of the picture: ${own.label} `, make("b", { title: String(own.score) }, precise(own.score)),
    ...(first && found.share ? [` (${precise(first.score)} with all of it)`] : []));
  const isSame = found.best === (before?.best ?? found.best);
  parts.note.textContent = isSame ? "" : `The model now says ${found.classes.find((one) => one.index === found.best).label}, not ${labelOf(before.best)}.`;
  const most = session.model.is_probability ? 1 : Math.max(...found.classes.map((one) => Math.abs(one.score)), 1e-9);
  parts.classes.replaceChildren(...[...found.classes].sort((a, b) => b.score - a.score).slice(0, 6).map((one) => {
    const bar = make("i");
    bar.style.width = `${Math.max(0, (100 * one.score) / most)}%`;
    return make("li", {}, make("div", { class: "pick", "aria-current": String(one.index === state.target) }, bar, make("span", {}, one.label), make("span", {}, show(one.score, 3))));
  }));
}
