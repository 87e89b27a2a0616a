// A method's map for a model: asked for, drawn, measured coarsely and then finely, and given up when nobody looks.

import { Stopped } from "./api.js";
import { make, show, showProgress } from "./dom.js";
import { Face } from "./face.js";
import { askCurves, askMaps, colourTable, followMap, lens, STANDARD, steps } from "./scene.js";
import { state } from "./state.js";

export class Tile {
  /** `place` says which model and class: { model, target, label, scene, isOther }. */
  constructor(method, colour, place, { onChange, onClose }) {
    Object.assign(this, { method, colour, place, onChange, curves: {}, map: null });
    this.face = new Face(lens, {
      name: method, colour, isOther: place.isOther, side: place.side, onClose,
    });
    this.element = this.face.element;
    this.element.dataset.model = place.model;
    this.blank();
  }

  // What the scrubber asks of it.
  get name() { return this.place.side ? `${this.method}, ${this.place.model}` : this.method; }
  get isOther() { return this.place.isOther; }
  get label() { return this.place.label; }
  get picture() { return this.place.scene?.picture; }
  get question() { return { picture: state.picture, model: this.place.model, methods: [this.method], target: this.place.target }; }
  referenceView(name) { return this.place.scene.reference(name); }

  /** Forgets what belongs to another picture, model or class. */
  blank() {
    this.stop();
    [this.map, this.curves] = [null, {}];
    this.face.blank(this.picture);
    this.face.score.textContent = "Ins-Del …";
  }

  stop() { this.controller?.abort(); }
  close() { this.stop(); this.face.close(); }

  /** Waits for the map of a state that the server answered with, then for its curves. */
  load(answer) {
    this.controller = new AbortController();
    const { signal } = this.controller;
    this.options = { signal, onState: (job) => showProgress(this.face.status, job, () => this.cancel()) };
    this.drawn = this.draw(answer, signal);
    this.drawn.then((isThere) => isThere && this.measureAll());
    return this.drawn;
  }

  async draw(answer, signal) {
    try {
      const map = await followMap(answer, this.question, this.options);
      if (signal.aborted) return false;
      this.map = map;
      await this.paint();
      if (signal.aborted) return false;
      this.calm();
      this.face.tell(null, `${map.seconds.toFixed(1)} s`);
      this.onChange();
      return true;
    } catch (error) {
      this.tellFailure(error);
      return false;
    }
  }

  /** All references coarsely, so that there is a score soon; then each finely, the one that is looked at first. */
  async measureAll() {
    const { signal } = this.controller;
    try {
      await this.measure(STANDARD, steps.coarse);
      await this.measure([state.reference], steps.coarse);
      for (const reference of new Set([state.reference, ...STANDARD])) {
        if (signal.aborted) return;
        await this.measure([reference], steps.fine);
      }
    } catch (error) { this.tellFailure(error); }
  }

  async measure(references, count) {
    const { signal } = this.controller, wanted = references.filter((one) => !(this.curves[one]?.steps >= count));
    if (!this.map || !wanted.length) return;
    const found = await askCurves(this.map.key, wanted, count, this.options);
    if (signal.aborted) return;
    this.isProbability = found.is_probability;
    for (const one of wanted) this.curves[one] = { ...found.references[one], steps: count };
    const known = STANDARD.map((name) => this.curves[name]);
    if (!known.includes(undefined)) {
      const isFine = known.every((one) => one.steps >= steps.fine);
      const mean = known.reduce((sum, one) => sum + one.ins_del, 0) / known.length;
      this.face.score.textContent = `Ins-Del ${isFine ? "" : "≈ "}${show(mean)}`;
    }
    this.calm();
    this.onChange();
  }

  /** For another reference: coarse, then fine. */
  async refer(reference) {
    try {
      await this.measure([reference], steps.coarse);
      await this.measure([reference], steps.fine);
    } catch (error) { this.tellFailure(error); }
  }

  /** No work under way; a flat map is still worth a word. */
  calm() {
    const line = this.map?.flat ? [make("span", { class: "failed" }, "This map is flat: all pixels have the same value.")] : [];
    this.face.status.replaceChildren(...line);
  }

  cancel() {
    this.stop();
    this.offer("Cancelled.");
  }

  tellFailure(error) {
    if (error instanceof Stopped) return;
    this.face.score.textContent = "";
    this.offer(error.message, "failed");
  }

  offer(line, kind = "") {
    this.face.status.replaceChildren(make("div", { class: "progress" }, make("span", { class: kind }, line),
      make("button", { type: "button", on: { click: () => this.again() } }, "Try again")));
  }

  async again() {
    this.blank();
    try {
      const [answer] = await askMaps(this.question);
      if (answer.error) throw new Error(answer.error);
      await this.load(answer);
    } catch (error) { this.tellFailure(error); }
  }

  async paint() {
    if (this.map && this.picture) await this.face.paint(this.picture, this.map, state, colourTable);
  }
}
