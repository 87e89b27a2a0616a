// What the model says, and which of it is explained.

import { get, Stopped } from "./api.js";
import * as beside from "./beside.js";
import * as compare from "./compare.js";
import { $, make, say, show } from "./dom.js";
import * as paint from "./paint.js";
import * as refine from "./refine.js";
import { labelOf, session } from "./session.js";
import { remember, state } from "./state.js";
import { openTab, selectTab } from "./views.js";

export function drawClasses() {
  const others = [...new Set([state.target, ...state.rivals])].filter((index) => !session.classes.some((one) => one.index === index));
  const rows = [...session.classes, ...others.map((index) => ({ index, label: labelOf(index), score: null }))];
  const most = session.model.is_probability ? 1 : Math.max(...session.classes.map((one) => Math.abs(one.score)), 1e-9);
  $("classes-box").hidden = false;
  const held = document.activeElement?.closest("#classes li"); // its control keeps the focus
  const [place, control] = [held?.dataset.index, [".pick", ".why", "input"].find((kind) => document.activeElement.matches(kind))];
  $("classes").replaceChildren(...rows.map((one) => {
    const bar = make("i");
    bar.style.width = `${one.score === null ? 0 : Math.max(0, (100 * one.score) / most)}%`;
    const pick = make("button", { type: "button", class: "pick", "aria-pressed": String(one.index === state.target), title: `class ${one.index}`, on: { click: () => pickClass(one.index) } },
      bar, make("span", {}, one.label), make("span", {}, one.score === null ? "" : show(one.score, 3)));
    const box = make("input", { type: "checkbox", checked: state.rivals.includes(one.index), "aria-label": `Compare ${one.label}`, on: { change: () => {
      state.rivals = box.checked ? [...state.rivals, one.index].slice(-session.about.most_classes) : state.rivals.filter((index) => index !== one.index);
      remember();
      drawClasses();
      if (state.tab === "contrast") openTab();
    } } });
    const rival = make("label", { class: "rival", title: "compare in the contrast view" }, box);
    const isPredicted = one.index === session.classes[0].index;
    const ask = isPredicted ? [] : [make("button", { type: "button", class: "why", title: `Why ${session.classes[0].label}, and not ${one.label}?`, on: { click: () => whyNot(one.index) } }, "Why not?")];
    return make("li", { data: { index: one.index } }, pick, ...ask, rival);
  }));
  if (held) $("classes").querySelector(`li[data-index="${place}"] ${control}`)?.focus();
}

/** What the model says against what was expected, side by side. */
function whyNot(index) {
  state.rivals = [session.classes[0].index, index];
  drawClasses();
  selectTab("contrast");
  openTab();
}

export function pickClass(index) {
  state.target = index;
  if (!session.classes.length) return; // the model is still looking; then it is taken up
  drawClasses();
  classChanged();
}

let changes = 0;
export async function classChanged() {
  remember();
  for (const view of [refine, paint]) view.reset();
  openTab();
  const turn = ++changes, generation = session.generation, isCurrent = () => turn === changes && generation === session.generation;
  try {
    const label = labelOf(state.target), places = [{ model: state.model, target: state.target, label }];
    if (state.other) {
      const other = await beside.placeOf(label);
      if (!isCurrent()) return;
      other.told();
      places.push(other.place);
    }
    await compare.reload(places);
  } catch (error) { if (!(error instanceof Stopped)) say(error.message); }
}

/** Looks for a class; `isFinal` once the text is all there is: then it is one, or it is said that it is none. */
export async function searchClass(isFinal) {
  const search = $("class-search").value.trim();
  if (!search || !state.picture) return;
  try {
    const { classes: hits, near } = await get(`/api/classes?${new URLSearchParams({ model: state.model, search })}`);
    $("class-hints").replaceChildren(...hits.map((one) => make("option", { value: one.label })));
    const exact = hits.find((one) => one.label.toLowerCase() === search.toLowerCase()) ?? (hits.length === 1 && /^\d+$/.test(search) ? hits[0] : null);
    if (exact && isFinal) {
      session.named.set(exact.index, exact.label);
      $("class-search").value = "";
      say("");
      pickClass(exact.index);
    } else if (isFinal && hits.length) say(`“${search}” can mean ${hits.slice(0, 5).map((one) => one.label).join(", ")}${hits.length > 5 ? " and others" : ""}; choose one`);
    else if (isFinal) say(`${state.model} has no class “${search}”${near.length ? `; did you mean ${near.join(", ")}?` : ""}`);
  } catch (error) { say(error.message); }
}

export async function learnName(index) {
  const { classes: [hit] } = await get(`/api/classes?${new URLSearchParams({ model: state.model, search: String(index) })}`);
  if (hit) session.named.set(hit.index, hit.label);
}
