// Pictures in: dropped, pasted, chosen or examples; and one of them opened.

import { ask, get, post, Stopped, upload } from "./api.js";
import * as beside from "./beside.js";
import { classChanged, drawClasses, learnName } from "./classes.js";
import * as compare from "./compare.js";
import * as contrast from "./contrast.js";
import { $, make, say } from "./dom.js";
import * as paint from "./paint.js";
import * as refine from "./refine.js";
import { lens } from "./scene.js";
import { session } from "./session.js";
import { state } from "./state.js";
import * as target from "./target.js";
import { chooseModel, hasClasses, openTab, selectTab } from "./views.js";

const MOST_AT_ONCE = 50;

export async function take(files) {
  const given = [...files]; // now: an input's list is emptied when it is used again
  await session.ready;
  if (!session.about) return;
  const isPicture = (file) => !file.type || file.type.startsWith("image/") || given.length === 1;
  const wanted = given.filter(isPicture);
  if (!wanted.length) {
    say("there is no image among these files");
    return;
  }
  const failed = given.filter((file) => !isPicture(file)).map((file) => `${file.name}: not a picture`);
  if (wanted.length > MOST_AT_ONCE) say(`${wanted.length} images; the first ${MOST_AT_ONCE} are taken`, { calm: true });
  let first = null;
  for (const file of wanted.slice(0, MOST_AT_ONCE)) {
    if (file.size > session.about.max_upload) {
      failed.push(`${file.name}: larger than ${session.about.max_upload / 2 ** 20} MB`);
      continue;
    }
    try {
      const record = await upload(file);
      first ??= record;
      keep(record);
      if (first === record) { say(""); openPicture(record); }
    } catch (error) { failed.push(`${file.name}: ${error.message}`); }
  }
  if (failed.length) say(failed.join("; ")); // at the end, when no picture that could be read takes it away
}

export function exampleButton(number, ...caption) {
  const title = session.about.examples[number];
  const open = async () => {
    try { say(""); openPicture(await post(`/api/examples/${number}`, {})); } catch (error) { say(error.message); }
  };
  return make("button", { type: "button", title, "aria-label": title, on: { click: open } },
    make("img", { src: `/api/examples/${number}/thumbnail`, alt: "", loading: "lazy" }), ...caption);
}

function keep(record) {
  if (!session.pictures.some((one) => one.key === record.key)) session.pictures.push(record);
  drawStrip();
}

function drawStrip() {
  $("strip").hidden = session.pictures.length < 2;
  $("strip").replaceChildren(...session.pictures.map((one) => make("button", {
    type: "button", title: one.name, "aria-label": one.name, "aria-current": String(one.key === state.picture), on: { click: () => openPicture(one) },
  }, make("img", { src: `/api/pictures/${one.key}/thumbnail`, alt: "", loading: "lazy" }))));
}

/** Shows a picture; with a model, for a class and by a method where it is known what to look at. */
export async function openPicture(record, { target = null, method = null, model: wanted = "" } = {}) {
  if (session.about.models.some((one) => one.name === wanted)) chooseModel(wanted);
  state.picture = record.key;
  state.target = target;
  state.rivals = [];
  if (method && !state.methods.includes(method)) state.methods = [method, ...state.methods].slice(0, 8);
  if (method) state.by = state.methods.indexOf(method);
  if (state.tab === "runs") state.tab = "compare";
  lens.whole();
  keep(record);
  await showPicture();
}

export async function showPicture() {
  const turn = ++session.generation;
  $("thumbnail").src = `/api/pictures/${state.picture}/thumbnail`;
  $("original").hidden = false;
  $("hint").hidden = true;
  if (matchMedia("(max-width: 900px)").matches) $("examples-box").open = false;
  $("welcome").hidden = true;
  drawStrip();
  clear();
  selectTab(state.tab);
  $("frame").hidden = $("frame-note").hidden = true;
  showFrame(turn).catch((error) => turn === session.generation && say(error.message));
  if (!hasClasses()) return openTab();
  try {
    const found = await ask("/api/classes", { picture: state.picture, model: state.model });
    if (turn !== session.generation) return;
    session.classes = found.classes;
    for (const one of session.classes) session.named.set(one.index, one.label);
    state.target ??= session.classes[0].index;
    if (!session.named.has(state.target)) await learnName(state.target);
    if (turn !== session.generation) return;
    if (!session.named.has(state.target)) {
      say(`${state.model} has no class ${state.target}; its best one is explained`);
      state.target = session.classes[0].index;
    }
    contrast.setBest(session.classes.map((one) => one.index));
    drawClasses();
    classChanged();
  } catch (error) {
    if (turn === session.generation && !(error instanceof Stopped)) say(error.message);
  }
  return undefined;
}

/** Nothing of another picture or model stays in sight while the new one is asked about. */
function clear() {
  session.classes = [];
  $("classes-box").hidden = !hasClasses();
  $("classes").replaceChildren(make("li", { class: "hint" }, "The model is looking …"));
  beside.clear();
  compare.clear();
  for (const view of [refine, contrast, paint, target]) view.reset();
}

/** Draws a frame around the part of the whole picture that the model sees, unless that is all of it. */
async function showFrame(turn) {
  const window = await get(`/api/pictures/${state.picture}/window?${new URLSearchParams({ model: state.model })}`);
  if (turn !== session.generation) return;
  const [top, left] = [window.top, window.left].map((start) => Math.max(0, start));
  const [bottom, right] = [window.bottom, window.right].map((end) => Math.min(1, end));
  const isCut = (bottom - top) * (right - left) < 0.995;
  $("frame").hidden = $("frame-note").hidden = !isCut;
  const places = { top, left, width: right - left, height: bottom - top };
  for (const [name, share] of Object.entries(places)) $("frame").style[name] = `${share * 100}%`;
}
