// A second model on the same picture: what it says, and which of its classes is set beside the explained one.

import { ask, get } from "./api.js";
import { $, make, show } from "./dom.js";
import { state } from "./state.js";

const SHOWN = 3;

export function clear() { $("beside").hidden = true; }

/** The place of the second model: its class of the same name, or its best one if it has none; `told` says on the page which. */
export async function placeOf(label) {
  const { other: model, picture } = state;
  const [said, named] = await Promise.all([
    ask("/api/classes", { picture, model }),
    get(`/api/classes?${new URLSearchParams({ model, search: label })}`),
  ]);
  const same = named.classes.find((one) => one.label === label), chosen = same ?? said.classes[0];
  const rows = said.classes.slice(0, SHOWN).map((one) => make("li", {}, make("span", {}, one.label), make("span", {}, show(one.score, 3))));
  const note = same ? `Explained for ${label}, too.` : `It has no class “${label}”; explained for ${chosen.label}.`;
  const told = () => {
    $("beside").replaceChildren(make("h2", {}, `What ${model} says`), make("ol", { class: "plain" }, ...rows), make("p", { class: "hint" }, note));
    $("beside").hidden = false;
  };
  return { place: { model, target: chosen.index, label: chosen.label }, told };
}
