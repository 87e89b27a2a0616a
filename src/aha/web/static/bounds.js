// Curves that say what is little and what is much: of an order that knows nothing, and of one that was searched for.

import { Stopped } from "./api.js";
import { askCurves, askMaps, followMap, steps } from "./scene.js";
import { state } from "./state.js";

export const RANDOM = { method: "random_map", name: "random pixels", kind: "random" };
export const SEARCH = { method: "search(parts=patches(grid=5), budget=300)", needs: "search", name: "found by search in 300 passes", kind: "searched" };

/** The curve of a bound, for the picture, model and class of a place; `onChange` when there is more of it. */
export class Bound {
  constructor(bound, place, onChange, { onState = () => {}, onFound = () => {} } = {}) {
    Object.assign(this, { ...bound, place, onChange, onState, onFound, curves: {} });
    this.controller = new AbortController();
    this.ready = this.find();
  }

  stop() { this.controller.abort(); }

  /** Why there is none, if so. */
  async find() {
    const { model, target } = this.place, { signal } = this.controller;
    try {
      const question = { picture: state.picture, model, methods: [this.method], target }, [answer] = await askMaps(question);
      if (answer.error) return answer.error;
      this.map = await followMap(answer, question, { signal, onState: this.onState });
      this.onFound();
      await this.refer(state.reference);
      return "";
    } catch (error) { return error instanceof Stopped ? "" : error.message; }
  }

  async refer(reference) {
    const { signal } = this.controller;
    if (!this.map || this.curves[reference]) return;
    for (const count of [steps.coarse, steps.fine]) {
      const found = await askCurves(this.map.key, [reference], count, { signal });
      if (signal.aborted) return;
      this.curves[reference] = found.references[reference];
      this.onChange();
    }
  }
}
