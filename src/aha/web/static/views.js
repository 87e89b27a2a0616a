// The views, of which one is open, and the model they look at.

import { SEARCH } from "./bounds.js";
import * as contrast from "./contrast.js";
import { $, make, say } from "./dom.js";
import * as paint from "./paint.js";
import * as refine from "./refine.js";
import * as runs from "./runs.js";
import * as target from "./target.js";
import { labelOf, session } from "./session.js";
import { remember, state, TABS } from "./state.js";

const WITHOUT_CLASSES = ["target", "runs"];
/** A segmenter or detector has none of whole images: it is asked about a place alone. */
export const hasClasses = () => session.model.kind === "class";

export function selectTab(wanted) {
  const name = session.model && !hasClasses() && !WITHOUT_CLASSES.includes(wanted) ? "target" : wanted;
  if (name !== state.tab) say(""); // what was said was about the view that is left
  state.tab = name;
  document.body.dataset.tab = name;
  for (const tab of TABS) {
    $(`tab-${tab}`).setAttribute("aria-selected", String(tab === name));
    $(`tab-${tab}`).tabIndex = tab === name ? 0 : -1;
    $(tab).hidden = tab !== name || (tab !== "runs" && !state.picture);
  }
  $("welcome").hidden = Boolean(state.picture) || name === "runs";
  remember();
}

export function openTab() {
  if (!session.about) return; // not yet; the beginning opens it
  if (state.tab === "refine") refine.open(session.about, session.model);
  if (state.tab === "contrast" && state.target !== null) contrast.open(labelOf);
  if (state.tab === "paint" && state.target !== null) paint.open(session.about, labelOf);
  if (state.tab === "target") target.open(session.model);
  if (state.tab === "runs") runs.open();
}

export function chooseModel(name) {
  session.model = session.about.models.find((one) => one.name === name) ?? session.about.models[0];
  if (state.model !== session.model.name) session.named.clear();
  state.model = session.model.name;
  $("model").value = session.model.name;
  $("method-hints").replaceChildren(...session.model.methods.map((one) => make("option", { value: one.text }, one.summary)));
  if (!state.methods.length) state.methods = [...session.model.suggested];
  $("best").hidden = !session.model.methods.some((one) => one.text === SEARCH.needs);
  for (const tab of TABS) $(`tab-${tab}`).disabled = !hasClasses() && !WITHOUT_CLASSES.includes(tab);
  const others = session.about.models.filter((one) => one !== session.model && hasClasses() && one.kind === "class");
  if (!others.some((one) => one.name === state.other)) state.other = "";
  $("other-label").hidden = !others.length;
  $("other").replaceChildren(make("option", { value: "" }, "no other model"), ...others.map((one) => make("option", { value: one.name, selected: one.name === state.other }, one.name)));
}
