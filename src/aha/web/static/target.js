// Any number that a model gives: a text, or a box or a region drawn on the picture, explained and measured.

import { ask, get, Stopped } from "./api.js";
import { Cells } from "./brush.js";
import { $, make, say, show, short, showProgress } from "./dom.js";
import { Face } from "./face.js";
import { View } from "./lens.js";
import { Plot } from "./plot.js";
import { askCurves, colourTable, lens, sceneOf, steps, withNumbers } from "./scene.js";
import { session } from "./session.js";
import { remember, state } from "./state.js";

const EXAMPLES = { class: "contrast(281, 282)", region: "region(box=(20, 30, 120, 140))", box: "box(20, 30, 120, 140)" };
const CORNERS = ["x0", "y0", "x1", "y1"];
let parts, controller, scene = null, window_ = null, cells = null, corners = null, generation = 0;

const isBrush = () => parts.tools.find((one) => one.checked)?.value === "brush";
const radius = () => (Number(parts.size.value) / 100) * scene.picture.width;

/** A view on which dragging draws a box, or marks pixels. */
class Drawing extends View {
  constructor(canvas, shared) {
    super(canvas, shared);
    canvas.title = "Drag to draw";
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => this.finish());
  }

  get isBrushed() { return canDraw(); }

  press(event) {
    super.press(event);
    if (!scene || !canDraw() || this.pointers.size > 1) return;
    this.start = this.place(event);
    if (isBrush()) this.mark_(this.start, this.start);
  }

  drag(event, from) {
    if (!this.start || this.pointers.size > 1) {
      this.start = null;
      super.drag(event, from);
      return;
    }
    const to = this.place(event);
    if (isBrush()) this.mark_(this.place({ clientX: from[0], clientY: from[1] }), to);
    else setCorners([this.start.x, this.start.y, to.x, to.y].map(onPicture));
    this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
  }

  finish() {
    const isBox = this.start && !isBrush() && corners;
    this.start = null;
    if (isBox) explain();
  }

  mark_(from, to) {
    cells.stroke(from, to, radius(), 1);
    parts.text.value = "";
    this.lens.redraw();
  }

  draw() {
    super.draw();
    if (!this.image || !this.canvas.isConnected || !scene) return;
    const context = this.canvas.getContext("2d"), [left, top, width] = this.window(), scale = this.canvas.width / width;
    if (cells && !cells.isEmpty) {
      context.fillStyle = "rgb(255 210 0 / .45)";
      const [w, h] = [cells.width / cells.columns, cells.height / cells.rows];
      for (let row = 0; row < cells.rows; row++) {
        for (let column = 0, from = -1; column <= cells.columns; column++) { // runs of cells, so that no seams are seen
          const isSet = column < cells.columns && cells.values[row * cells.columns + column];
          if (isSet && from < 0) from = column;
          else if (!isSet && from >= 0) {
            context.fillRect((from * w - left) * scale, (row * h - top) * scale, (column - from) * w * scale, h * scale);
            from = -1;
          }
        }
      }
    }
    if (!corners) return;
    const [x0, y0, x1, y1] = corners.map((value, i) => (onView(value, i) - (i % 2 ? top : left)) * scale);
    for (const [colour, line] of [["rgb(0 0 0 / .7)", 5], ["#ffd200", 2.5]]) {
      [context.strokeStyle, context.lineWidth] = [colour, line];
      context.strokeRect(x0, y0, x1 - x0, y1 - y0);
    }
  }

  mark(context, x, y, scale) {
    if (!scene || !canDraw() || !isBrush()) return super.mark(context, x, y);
    context.moveTo(x + radius() * scale, y);
    context.arc(x, y, radius() * scale, 0, 2 * Math.PI);
    return undefined;
  }
}

const canDraw = () => session.model.kind !== "class";
const sides = (i) => (i % 2 ? [window_.top, window_.bottom, scene.height, scene.picture.height] : [window_.left, window_.right, scene.width, scene.picture.width]);

/** A coordinate of what the model sees, as a pixel of the picture; even places are x, odd ones y. */
function onPicture(value, i) {
  const [low, high, whole, seen] = sides(i);
  return Math.round(Math.min(whole, Math.max(0, (low + (value / seen) * (high - low)) * whole)));
}

function onView(value, i) {
  const [low, high, whole, seen] = sides(i);
  return ((value / whole - low) / (high - low)) * seen;
}

/** Takes a box over, in pixels of the picture, whichever of its corners came first. */
function setCorners([xa, ya, xb, yb]) {
  const [x0, y0, x1, y1] = [Math.min(xa, xb), Math.min(ya, yb), Math.max(xa, xb), Math.max(ya, yb)];
  corners = x0 < x1 && y0 < y1 ? [x0, y0, x1, y1] : null;
  parts.corners.forEach((input, i) => { input.value = [x0, y0, x1, y1][i]; });
  if (corners) write();
  lens.redraw();
}

/** The text of a box, with the class that is written beside it. */
function write() {
  const cls = parts.cls.value.trim();
  const of = cls === "" ? "" : `, cls=${/^\d+$/.test(cls) ? cls : `'${cls.replace(/[\\']/g, "\\$&")}'`}`;
  parts.text.value = session.model.kind === "box" ? `box(${corners.join(", ")}${of})` : `region(box=(${corners.join(", ")})${of})`;
}

function build() {
  const canvas = make("canvas", { id: "target-view", width: 480, height: 480, tabIndex: 0, "aria-label": "The image to draw on" });
  const typed = () => { const values = parts.corners.map((input) => input.value); if (values.every((value) => value !== "")) setCorners(values.map(Number)); };
  parts = {
    canvas, view: new Drawing(canvas, lens),
    tools: ["box", "brush"].map((value) => make("input", { type: "radio", name: "drawing", value, checked: value === "box", on: { change: chosen } })),
    size: make("input", { type: "range", id: "target-brush", min: 1, max: 25, step: 0.5, value: 6, on: { input: () => lens.redraw() } }),
    corners: CORNERS.map((name) => make("input", { type: "number", id: `target-${name}`, min: 0, max: 100000, step: 1, on: { change: typed } })),
    cls: make("input", { id: "target-class", autocomplete: "off", placeholder: "best one", on: { change: () => corners && !isBrush() && write() } }),
    text: make("input", { id: "target-text", autocomplete: "off", spellcheck: false, value: state.question }),
    method: make("input", { id: "target-method", autocomplete: "off", spellcheck: false }),
    note: make("p", { class: "note", id: "target-note" }), status: make("div", { id: "target-status" }),
    reading: make("p", { class: "reading", id: "target-reading", "aria-live": "polite" }),
    place: make("div", { class: "plot" }), legend: make("div", { class: "legend" }), code: make("pre", { id: "target-code" }),
    face: new Face(lens, { name: "the target", colour: 0 }),
  };
  parts.method.setAttribute("list", "method-hints");
  parts.plot = new Plot(parts.place);
  const tools = parts.tools.map((radio, i) => make("label", {}, radio, ["Draw a box", "Brush a region"][i]));
  parts.switch = make("fieldset", { class: "switch" }, make("legend", { class: "away" }, "Drawing"), ...tools);
  parts.box = make("div", { class: "corners" }, ...parts.corners.map((input, i) => make("label", {}, CORNERS[i], input)));
  parts.brush = make("div", { class: "row wrap" }, make("label", { class: "wide" }, "Size", parts.size),
    make("button", { type: "button", id: "target-clear", on: { click: () => { cells = new Cells(scene.picture); lens.redraw(); } } }, "Clear"));
  parts.drawing = make("div", { class: "drawing" }, parts.switch, parts.box, parts.brush, make("label", {}, "Class ", parts.cls));
  parts.result = make("div", { class: "asked", hidden: true }, parts.face.element, make("div", {}, parts.reading, parts.place, parts.legend, parts.code));
  const form = make("form", { class: "question", on: { submit: (event) => { event.preventDefault(); explain(); } } },
    parts.drawing, make("label", { class: "stack" }, "Target", parts.text),
    make("div", { class: "row wrap" }, make("label", {}, "Method ", parts.method), make("button", { class: "primary", id: "target-ask" }, "Explain")), parts.status);
  $("target").classList.add("panel");
  $("target").replaceChildren(parts.note, make("div", { class: "asked" }, make("div", { class: "scrub-picture" }, canvas), form), parts.result);
}

export function open(model) {
  if (!parts) build();
  const draws = { class: "A target is a number that the model gives: a contrast, an output, a neuron.",
    region: "Draw a box or brush a region, and ask which pixels the score of a class there relies on.",
    box: "Draw a box around an object, and ask which pixels its detection relies on." };
  parts.note.textContent = `${draws[model.kind]} Coordinates are pixels of your image.`;
  parts.text.placeholder = EXAMPLES[model.kind];
  parts.method.value = state.asker || model.suggested[0] || "gradient";
  parts.drawing.hidden = model.kind === "class";
  parts.switch.hidden = model.kind !== "region";
  if (model.kind === "box") parts.tools[0].checked = true;
  chosen();
  if (state.picture && !scene) begin();
}

/** What belongs to the chosen way of drawing. */
function chosen() {
  parts.box.hidden = isBrush();
  parts.brush.hidden = !isBrush();
  if (isBrush()) { [corners, parts.text.value] = [null, ""]; }
  else if (scene) cells = new Cells(scene.picture);
  lens.redraw();
}

/** Forgets what belongs to another picture or model. */
export function reset() {
  generation++;
  controller?.abort();
  [scene, cells, corners] = [null, null, null];
  if (!parts) return;
  parts.view.clear();
  parts.status.replaceChildren();
  parts.result.hidden = true;
  for (const input of parts.corners) input.value = "";
}

async function begin() {
  const turn = ++generation, key = state.picture;
  try {
    const [found, seen] = await Promise.all([sceneOf(key, state.model), get(`/api/pictures/${key}/window?${new URLSearchParams({ model: state.model })}`)]);
    if (turn !== generation) return;
    const { width, height } = session.pictures.find((one) => one.key === key);
    [scene, window_] = [{ ...found, width, height }, seen];
    cells = new Cells(found.picture);
    parts.view.show(found.picture);
  } catch (error) { if (turn === generation) say(error.message); }
}

async function explain() {
  if (!scene) return;
  const isBrushed = canDraw() && isBrush() && !cells.isEmpty && !parts.text.value.trim(), text = parts.text.value.trim();
  if (!isBrushed && !text) { parts.status.replaceChildren(make("span", { class: "failed" }, canDraw() ? "Draw a box, brush a region or write a target first." : `Write a target first, such as ${parts.text.placeholder}.`)); return; }
  const turn = ++generation;
  controller?.abort();
  controller = new AbortController();
  const { signal } = controller;
  [state.question, state.asker] = [text, parts.method.value.trim()];
  remember();
  const onState = (job) => showProgress(parts.status, job, () => { controller.abort(); parts.status.textContent = "Cancelled."; });
  const question = { picture: state.picture, model: state.model, method: state.asker };
  try {
    const asked = isBrushed ? { class: parts.cls.value.trim(), ...cells.packed() } : { target: text };
    const map = await withNumbers(await ask("/api/targets", { ...question, ...asked }, { onState, signal }));
    if (turn !== generation) return;
    parts.status.replaceChildren();
    await shown(map, turn);
    for (const count of [steps.coarse, steps.fine]) {
      const curves = await askCurves(map.key, [state.reference], count, { onState, signal });
      if (turn !== generation) return;
      plot(curves);
    }
    parts.status.replaceChildren();
  } catch (error) {
    if (turn === generation && !(error instanceof Stopped)) parts.status.replaceChildren(make("span", { class: "failed" }, error.message));
  }
}

async function shown(map, turn) {
  parts.result.hidden = false;
  parts.place.hidden = parts.legend.hidden = true;
  parts.face.score.textContent = "Ins-Del …";
  parts.face.element.querySelector(".name").textContent = map.method;
  await parts.face.paint(scene.picture, map, { ...state, mode: "overlay" }, colourTable);
  if (turn !== generation) return;
  parts.reading.replaceChildren(`${map.label}: `, make("b", { title: String(map.score) }, short(map.score)));
  parts.code.hidden = Boolean(map.asked.bits);
  parts.code.textContent = `aha.explain(model, "picture.png", ${JSON.stringify(map.method)}, target=${JSON.stringify(map.asked.text)})`;
}

function plot(curves) {
  const own = curves.references[state.reference];
  parts.place.hidden = parts.legend.hidden = false;
  parts.face.score.textContent = `Ins-Del ${show(own.ins_del)}`;
  parts.plot.draw(["deletion", "insertion"].map((name, i) => ({ colour: i, name, fractions: own.fractions, heights: own[name], isMain: true })),
    { isProbability: curves.is_probability, label: "share of pixels deleted or inserted" });
  parts.legend.replaceChildren(...["Deletion", "Insertion"].map((name, i) => make("span", { class: `c${i}` }, `${name} against ${state.reference}`)));
}
