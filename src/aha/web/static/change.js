// What would have to change: the pixels that speak for the predicted class go, and both classes are watched.

import { ask, Stopped } from "./api.js";
import { make, show, showProgress } from "./dom.js";
import { View } from "./lens.js";
import { heightAt, paintPerturbed } from "./pixels.js";
import { Plot } from "./plot.js";
import { lens, sceneOf, withNumbers } from "./scene.js";
import { state } from "./state.js";

const AGAINST = "blur";

export class Change {
  constructor() {
    this.canvas = make("canvas", { id: "change-view", width: 448, height: 448, tabIndex: 0, "aria-label": "The image without the evidence for the first class" });
    this.reading = make("p", { class: "reading", id: "change-reading", "aria-live": "polite" });
    this.sentence = make("p", { id: "change-sentence" });
    this.status = make("div", { id: "change-status" });
    this.legend = make("div", { class: "legend" });
    this.slider = make("input", { type: "range", id: "change-share", class: "on-plot", min: 0, max: 1000, step: 1, "aria-label": "Pixels that go", on: { input: () => this.move(this.slider.value / 1000) } });
    const place = make("div", { class: "plot" });
    this.result = make("div", { class: "scrubber", hidden: true }, make("div", { class: "scrub-picture" }, this.canvas),
      make("div", { class: "scrub-side" }, this.sentence, this.reading, place, this.slider, this.legend));
    this.element = make("section", { "aria-label": "What would have to change" }, make("h2", {}, "What would have to change"), this.status, this.result);
    this.element.hidden = true;
    this.view = new View(this.canvas, lens);
    this.plot = new Plot(place, (share) => this.move(share));
  }

  reset() {
    this.controller?.abort();
    this.found = null;
    this.element.hidden = true;
    this.view.clear();
    for (const place of [this.sentence, this.reading, this.status, this.legend]) place.replaceChildren();
  }

  /** For a contrast, from what the model says to what was expected, in the colours of the two. */
  async ask(contrast, first, second, colours) {
    this.reset();
    colours.forEach((rgb, i) => this.element.style.setProperty(`--c${i}`, `rgb(${rgb.join(" ")})`));
    this.controller = new AbortController();
    const { signal } = this.controller;
    this.element.hidden = false;
    this.result.hidden = true;
    const onState = (job) => showProgress(this.status, job, () => { this.controller.abort(); this.status.textContent = "Cancelled."; });
    try {
      const record = await ask("/api/changes", { contrast, first, second, reference: AGAINST }, { onState, signal });
      const [numbers, scene] = await Promise.all([withNumbers(record), sceneOf(state.picture, state.model)]);
      const blank = await scene.reference(AGAINST);
      if (signal.aborted || !blank) return;
      this.found = { ...numbers, picture: scene.picture, blank, out: new ImageData(scene.picture.width, scene.picture.height) };
      this.status.replaceChildren();
      this.draw();
    } catch (error) {
      if (!(error instanceof Stopped)) this.status.replaceChildren(make("span", { class: "failed" }, error.message));
    }
  }

  draw() {
    const { first, second, fractions, scores, place, says } = this.found;
    this.result.hidden = false;
    this.plot.draw([first, second].map((one, i) => ({ colour: i, name: one.label, isMain: true, fractions, heights: scores[i] })),
      { isProbability: this.found.is_probability, label: `share of pixels for ${first.label} that are gone` });
    this.legend.replaceChildren(...[first, second].map((one, i) => make("span", { class: `c${i}` }, one.label)));
    this.sentence.textContent = place === null
      ? `${second.label} never overtakes ${first.label}, however many of its pixels are removed.`
      : `Without the ${Math.round(100 * fractions[place])} % of pixels with the strongest evidence for ${first.label} rather than ${second.label}, ${second.label} is ahead, ${show(scores[1][place], 3)} against ${show(scores[0][place], 3)}`
        + (says === second.label ? ", and is what the model says." : `; the prediction is then ${says}.`);
    this.move(fractions[place ?? Math.min(2, fractions.length - 1)]);
  }

  move(share) {
    const { found } = this;
    if (!found) return;
    this.slider.value = Math.round(share * 1000);
    this.plot.mark(share);
    const [one, other] = found.scores.map((heights) => show(heightAt(found.fractions, heights, share), 3));
    this.reading.textContent = `${Math.round(100 * share)} % gone: ${found.first.label} ${one}, ${found.second.label} ${other}`;
    const count = Math.round(share * found.ranks.length);
    this.view.show(paintPerturbed(found.picture, found.blank, found.ranks, count, "delete", found.out));
  }
}
