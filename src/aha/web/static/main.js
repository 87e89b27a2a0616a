// The page: pictures in, classes out, and everything else hangs on the two.

import { ask, get, post, Stopped, text, upload } from "./api.js";
import * as beside from "./beside.js";
import { BEST } from "./bounds.js";
import * as compare from "./compare.js";
import * as contrast from "./contrast.js";
import { $, make, say, show } from "./dom.js";
import * as paint from "./paint.js";
import * as refine from "./refine.js";
import * as runs from "./runs.js";
import { lens, steps } from "./scene.js";
import { remember, restore, setLink, state, TABS } from "./state.js";

const MOST_AT_ONCE = 50;
const MOST_IN_GALLERY = 12;
let about, model;
let pictures = []; // records of this session
let classes = []; // the model's best
const named = new Map(); // index -> label
let generation = 0;

const labelOf = (index) => named.get(index) ?? `class ${index}`;

// Pictures

async function take(files) {
  const given = [...files]; // now: an input's list is emptied when it is used again
  await ready;
  if (!about) return;
  const wanted = given.filter((file) => !file.type || file.type.startsWith("image/") || given.length === 1);
  if (!wanted.length) {
    say("there is no picture among these files");
    return;
  }
  if (wanted.length > MOST_AT_ONCE) say(`${wanted.length} pictures; the first ${MOST_AT_ONCE} are taken`, { calm: true });
  let first = null;
  for (const file of wanted.slice(0, MOST_AT_ONCE)) {
    if (file.size > about.max_upload) {
      say(`${file.name} is larger than ${about.max_upload / 2 ** 20} MB`);
      continue;
    }
    try {
      const record = await upload(file);
      first ??= record;
      keep(record);
      if (first === record) { say(""); openPicture(record); }
    } catch (error) { say(error.message); }
  }
}

function exampleButton(number, ...caption) {
  const title = about.examples[number];
  const open = async () => {
    try { say(""); openPicture(await post(`/api/examples/${number}`, {})); } catch (error) { say(error.message); }
  };
  return make("button", { type: "button", title, "aria-label": title, on: { click: open } },
    make("img", { src: `/api/examples/${number}/thumbnail`, alt: "", loading: "lazy" }), ...caption);
}

function keep(record) {
  if (!pictures.some((one) => one.key === record.key)) pictures.push(record);
  drawStrip();
}

function drawStrip() {
  $("strip").hidden = pictures.length < 2;
  $("strip").replaceChildren(...pictures.map((one) => make("button", {
    type: "button", title: one.name, "aria-label": one.name, "aria-current": String(one.key === state.picture), on: { click: () => openPicture(one) },
  }, make("img", { src: `/api/pictures/${one.key}/thumbnail`, alt: "", loading: "lazy" }))));
}

/** Shows a picture; with a model, for a class and by a method where it is known what to look at. */
async function openPicture(record, { target = null, method = null, model: wanted = "" } = {}) {
  if (about.models.some((one) => one.name === wanted)) chooseModel(wanted);
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

async function showPicture() {
  const turn = ++generation;
  $("thumbnail").src = `/api/pictures/${state.picture}/thumbnail`;
  $("original").hidden = false;
  $("hint").hidden = true;
  if (matchMedia("(max-width: 900px)").matches) $("examples-box").open = false;
  $("welcome").hidden = true;
  drawStrip();
  clear();
  selectTab(state.tab);
  $("frame").hidden = $("frame-note").hidden = true;
  showFrame(turn).catch((error) => turn === generation && say(error.message));
  try {
    const found = await ask("/api/classes", { picture: state.picture, model: state.model });
    if (turn !== generation) return;
    classes = found.classes;
    for (const one of classes) named.set(one.index, one.label);
    state.target ??= classes[0].index;
    if (!named.has(state.target)) await learnName(state.target);
    if (turn !== generation) return;
    if (!named.has(state.target)) {
      say(`${state.model} has no class ${state.target}; its best one is explained`);
      state.target = classes[0].index;
    }
    contrast.setBest(classes.map((one) => one.index));
    drawClasses();
    classChanged();
  } catch (error) {
    if (turn === generation && !(error instanceof Stopped)) say(error.message);
  }
}

/** Nothing of another picture or model stays in sight while the new one is asked about. */
function clear() {
  classes = [];
  $("classes-box").hidden = false;
  $("classes").replaceChildren(make("li", { class: "hint" }, "The model is looking …"));
  beside.clear();
  compare.clear();
  for (const view of [refine, contrast, paint]) view.reset();
}

/** Draws a frame around the part of the whole picture that the model sees, unless that is all of it. */
async function showFrame(turn) {
  const window = await get(`/api/pictures/${state.picture}/window?${new URLSearchParams({ model: state.model })}`);
  if (turn !== generation) return;
  const [top, left] = [window.top, window.left].map((start) => Math.max(0, start));
  const [bottom, right] = [window.bottom, window.right].map((end) => Math.min(1, end));
  const isCut = (bottom - top) * (right - left) < 0.995;
  $("frame").hidden = $("frame-note").hidden = !isCut;
  const places = { top, left, width: right - left, height: bottom - top };
  for (const [name, share] of Object.entries(places)) $("frame").style[name] = `${share * 100}%`;
}

async function learnName(index) {
  const { classes: [hit] } = await get(`/api/classes?${new URLSearchParams({ model: state.model, search: String(index) })}`);
  if (hit) named.set(hit.index, hit.label);
}

// Classes

function drawClasses() {
  const others = [...new Set([state.target, ...state.rivals])].filter((index) => !classes.some((one) => one.index === index));
  const rows = [...classes, ...others.map((index) => ({ index, label: labelOf(index), score: null }))];
  const most = model.is_probability ? 1 : Math.max(...classes.map((one) => Math.abs(one.score)), 1e-9);
  $("classes-box").hidden = false;
  $("classes").replaceChildren(...rows.map((one) => {
    const bar = make("i");
    bar.style.width = `${one.score === null ? 0 : Math.max(0, (100 * one.score) / most)}%`;
    const pick = make("button", { type: "button", class: "pick", "aria-pressed": String(one.index === state.target), title: `class ${one.index}`, on: { click: () => pickClass(one.index) } },
      bar, make("span", {}, one.label), make("span", {}, one.score === null ? "" : show(one.score, 3)));
    const box = make("input", { type: "checkbox", checked: state.rivals.includes(one.index), "aria-label": `Compare ${one.label}`, on: { change: () => {
      state.rivals = box.checked ? [...state.rivals, one.index].slice(-about.most_classes) : state.rivals.filter((index) => index !== one.index);
      remember();
      drawClasses();
      if (state.tab === "contrast") openTab();
    } } });
    const rival = make("label", { class: "rival", title: "compare in the contrast view" }, box);
    const isPredicted = one.index === classes[0].index;
    const ask = isPredicted ? [] : [make("button", { type: "button", class: "why", title: `Why ${classes[0].label}, and not ${one.label}?`, on: { click: () => whyNot(one.index) } }, "Why not?")];
    return make("li", {}, pick, ...ask, rival);
  }));
}

/** What the model says against what was expected, side by side. */
function whyNot(index) {
  state.rivals = [classes[0].index, index];
  drawClasses();
  selectTab("contrast");
  openTab();
}

function pickClass(index) {
  state.target = index;
  drawClasses();
  classChanged();
}

async function classChanged() {
  remember();
  for (const view of [refine, paint]) view.reset();
  openTab();
  const turn = generation;
  try {
    const label = labelOf(state.target), places = [{ model: state.model, target: state.target, label }];
    if (state.other) places.push(await beside.placeOf(label));
    if (turn === generation && places[0].target === state.target) await compare.reload(places);
  } catch (error) { if (!(error instanceof Stopped)) say(error.message); }
}

/** Looks for a class; `isFinal` once the text is all there is: then it is one, or it is said that it is none. */
async function searchClass(isFinal) {
  const search = $("class-search").value.trim();
  if (!search || !state.picture) return;
  try {
    const { classes: hits, near } = await get(`/api/classes?${new URLSearchParams({ model: state.model, search })}`);
    $("class-hints").replaceChildren(...hits.map((one) => make("option", { value: one.label })));
    const exact = hits.find((one) => one.label.toLowerCase() === search.toLowerCase()) ?? (hits.length === 1 && /^\d+$/.test(search) ? hits[0] : null);
    if (exact) {
      named.set(exact.index, exact.label);
      $("class-search").value = "";
      say("");
      pickClass(exact.index);
    } else if (isFinal && hits.length) say(`“${search}” can mean ${hits.slice(0, 5).map((one) => one.label).join(", ")}${hits.length > 5 ? " and others" : ""}; choose one`);
    else if (isFinal) say(`${state.model} has no class “${search}”${near.length ? `; did you mean ${near.join(", ")}?` : ""}`);
  } catch (error) { say(error.message); }
}

// Views

function selectTab(name) {
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

function openTab() {
  if (!about) return; // not yet; the beginning opens it
  if (state.tab === "refine") refine.open(about, model);
  if (state.tab === "contrast" && state.target !== null) contrast.open(labelOf);
  if (state.tab === "paint" && state.target !== null) paint.open(about, labelOf);
  if (state.tab === "runs") runs.open();
}

function chooseModel(name) {
  model = about.models.find((one) => one.name === name) ?? about.models[0];
  if (state.model !== model.name) named.clear();
  state.model = model.name;
  $("model").value = model.name;
  $("method-hints").replaceChildren(...model.methods.map((one) => make("option", { value: one.text }, one.summary)));
  if (!state.methods.length) state.methods = [...model.suggested];
  $("best").hidden = !model.methods.some((one) => one.text === BEST.method);
  const others = about.models.filter((one) => one !== model);
  if (!others.some((one) => one.name === state.other)) state.other = "";
  $("other-label").hidden = !others.length;
  $("other").replaceChildren(make("option", { value: "" }, "no other"), ...others.map((one) => make("option", { value: one.name, selected: one.name === state.other }, one.name)));
}

async function share() {
  Object.assign(state, lens.current());
  try {
    const { key } = await post("/api/sessions", { pictures: pictures.map((one) => one.key), view: state });
    const link = `${location.origin}/#s=${key}`;
    setLink(link);
    await navigator.clipboard?.writeText(link).then(() => say("The link is in the clipboard.", { calm: true }), () => say(link, { calm: true }));
  } catch (error) { say(error.message); }
}

function openDialog(title, content) {
  $("dialog-title").textContent = title;
  $("dialog-text").textContent = content;
  $("dialog").showModal();
}

/** A download waits for maps that are still under way, and says which. */
async function download(event) {
  const link = $("download"), late = compare.missing();
  if (!state.picture) {
    event.preventDefault();
    say("open a picture first: a download holds its maps", { calm: true });
  } else if (late.length) {
    event.preventDefault();
    say(`The download starts when ${late.join(", ")} ${late.length > 1 ? "are" : "is"} there.`, { calm: true });
    const turn = generation;
    await compare.settled();
    if (turn !== generation) return;
    const lost = compare.missing();
    if (lost.length) say(`${lost.join(", ")}: no map, so ${link.href ? "the download is without" : "there is nothing to download"}`);
    if (link.href) location.href = link.href;
  } else if (!link.href) {
    event.preventDefault();
    say("there are no maps yet; add a method", { calm: true });
  }
}

async function showCode() {
  const keys = compare.mapKeys();
  if (!keys.length) return say("there are no maps yet", { calm: true });
  try {
    openDialog("The same maps in Python", await text(`/api/snippet?maps=${keys.join(",")}`));
  } catch (error) { say(error.message); }
  return undefined;
}

const KEYS = `1 to 9        explain the first, second, ... class
c r v p u     compare, refine, contrast, paint, runs
[ and ]       fewer, more pixels in the scrubber
d             delete or insert
?             this help

In a picture that was clicked, or reached with Tab:
wheel, + and -  zoom in and out
arrows, drag    move; all pictures follow
0, double click all of it

Anywhere else the wheel scrolls the page; with Ctrl, Shift or Cmd
held it zooms the picture under the pointer. On a touch screen two
fingers zoom, and one moves what is zoomed.`;
const TAB_KEYS = { c: "compare", r: "refine", v: "contrast", p: "paint", u: "runs" };

function onKey(event) {
  if (event.target.closest("input, select, textarea, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (/^[1-9]$/.test(event.key) && classes[event.key - 1]) pickClass(classes[event.key - 1].index);
  else if (event.key === "[") compare.nudge(-0.01);
  else if (event.key === "]") compare.nudge(0.01);
  else if (event.key === "d") compare.flip();
  else if (event.key in TAB_KEYS) { selectTab(TAB_KEYS[event.key]); openTab(); }
  else if (event.key === "?") openDialog("Keys", KEYS);
}

function wire() {
  for (const id of ["file", "folder"]) $(id).addEventListener("change", () => { take($(id).files); });
  document.addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dropping"); });
  document.addEventListener("dragleave", (event) => event.relatedTarget || document.body.classList.remove("dropping"));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dropping");
    if (event.dataTransfer.files.length) take(event.dataTransfer.files);
  });
  document.addEventListener("paste", (event) => { if (event.clipboardData.files.length) take(event.clipboardData.files); });
  document.addEventListener("keydown", onKey);
  $("class-search").addEventListener("input", () => searchClass(false));
  $("class-search").addEventListener("change", () => searchClass(true));
  $("model").addEventListener("change", () => {
    chooseModel($("model").value);
    [state.target, state.rivals] = [null, []];
    say("");
    if (state.picture) showPicture();
  });
  $("other").addEventListener("change", () => {
    state.other = $("other").value;
    beside.clear();
    if (state.picture && state.target !== null) classChanged();
  });
  $("download").addEventListener("click", download);
  $("download").addEventListener("keydown", (event) => { if (event.key === "Enter" && !$("download").href) $("download").click(); });
  for (const tab of TABS) {
    $(`tab-${tab}`).addEventListener("click", () => { selectTab(tab); openTab(); });
    $(`tab-${tab}`).addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = TABS[(TABS.indexOf(tab) + step + TABS.length) % TABS.length];
      selectTab(next);
      openTab();
      $(`tab-${next}`).focus();
    });
  }
  $("share").addEventListener("click", share);
  $("code").addEventListener("click", showCode);
  $("help").addEventListener("click", () => openDialog("Keys", KEYS));
  $("dialog-copy").addEventListener("click", () => navigator.clipboard?.writeText($("dialog-text").textContent));
  window.addEventListener("hashchange", async () => { if (await readLink()) location.reload(); });
}

/** Takes the view out of the address, if there is one. */
async function readLink() {
  const [kind, value] = [location.hash.slice(1, 3), location.hash.slice(3)];
  try {
    if (kind === "v=") restore(JSON.parse(decodeURIComponent(value)));
    else if (kind === "s=") {
      const session = await get(`/api/sessions/${encodeURIComponent(value)}`);
      restore(session.view);
      pictures = session.pictures;
    } else return false;
    return true;
  } catch (error) {
    say(`this link cannot be read: ${error.message}`);
    return false;
  }
}

async function begin() {
  about = await get("/api/about");
  await readLink();
  $("model").replaceChildren(...about.models.map((one) => make("option", { value: one.name }, one.name)));
  chooseModel(state.model);
  $("examples-box").hidden = !about.examples.length;
  $("examples").replaceChildren(...about.examples.map((title, i) => exampleButton(i)));
  $("gallery").replaceChildren(...about.examples.slice(0, MOST_IN_GALLERY).map((title, i) => exampleButton(i, make("span", {}, title))));
  Object.assign(steps, about.curve_steps);
  compare.start(about);
  runs.start(about, openPicture);
  selectTab(state.tab);
  if (state.picture) {
    try {
      const record = await get(`/api/pictures/${state.picture}`);
      if (!pictures.some((one) => one.key === record.key)) pictures.push(record);
      lens.set({ zoom: state.zoom, x: state.x, y: state.y });
      await showPicture();
    } catch (error) {
      state.picture = "";
      selectTab(state.tab);
      say(error.message);
    }
  } else openTab();
}

// Listening before anything is known: a picture that is dropped early waits for the rest.
wire();
const ready = begin().catch((error) => say(error.message));
