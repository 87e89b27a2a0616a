// The page: pictures in, classes out, and everything else hangs on the two.

import { get } from "./api.js";
import * as beside from "./beside.js";
import { classChanged, searchClass } from "./classes.js";
import * as compare from "./compare.js";
import { $, make, say } from "./dom.js";
import { onKey, showKeys } from "./keys.js";
import { exampleButton, openPicture, showPicture, take } from "./pictures.js";
import * as runs from "./runs.js";
import { lens, steps } from "./scene.js";
import { session } from "./session.js";
import { restore, state, TABS } from "./state.js";
import { copyDialog, download, share, showCode } from "./taking_away.js";
import { chooseModel, openTab, selectTab } from "./views.js";

const MOST_IN_GALLERY = 12;

function wire() {
  for (const id of ["file", "folder"]) $(id).addEventListener("change", () => {
    take($(id).files);
    $(id).value = ""; // so that the same file can be chosen again
  });
  document.addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dropping"); });
  document.addEventListener("dragleave", (event) => event.relatedTarget || document.body.classList.remove("dropping"));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dropping");
    if (event.dataTransfer.files.length) take(event.dataTransfer.files);
  });
  document.addEventListener("paste", (event) => { if (event.clipboardData.files.length) take(event.clipboardData.files); });
  document.addEventListener("keydown", onKey);
  // An entry of the list is all there is to say; a text that is being typed may be the beginning of another one.
  $("class-search").addEventListener("input", (event) => searchClass(!(event instanceof InputEvent) || event.inputType === "insertReplacementText"));
  $("class-search").addEventListener("change", () => searchClass(true));
  $("model").addEventListener("change", () => {
    chooseModel($("model").value);
    [state.target, state.rivals] = [null, []];
    say("");
    selectTab(state.tab);
    if (state.picture) showPicture();
  });
  $("other").addEventListener("change", () => {
    state.other = $("other").value;
    beside.clear();
    if (state.picture && state.target !== null) classChanged();
  });
  $("download").addEventListener("click", download);
  $("download").addEventListener("keydown", (event) => {
    if (event.key !== " " && (event.key !== "Enter" || $("download").href)) return; // a link with an address takes Enter itself
    event.preventDefault();
    $("download").click();
  });
  for (const tab of TABS) {
    $(`tab-${tab}`).addEventListener("click", () => { selectTab(tab); openTab(); });
    $(`tab-${tab}`).addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const open = TABS.filter((one) => !$(`tab-${one}`).disabled);
      const next = open[(open.indexOf(tab) + step + open.length) % open.length];
      selectTab(next);
      openTab();
      $(`tab-${next}`).focus();
    });
  }
  $("share").addEventListener("click", share);
  $("code").addEventListener("click", showCode);
  $("help").addEventListener("click", showKeys);
  $("dialog-copy").addEventListener("click", copyDialog);
  window.addEventListener("hashchange", async () => { if (await readLink()) location.reload(); });
}

/** Takes the view out of the address, if there is one. */
async function readLink() {
  const [kind, value] = [location.hash.slice(1, 3), location.hash.slice(3)];
  try {
    if (kind === "v=") restore(JSON.parse(decodeURIComponent(value)));
    else if (kind === "s=") {
      const shared = await get(`/api/sessions/${encodeURIComponent(value)}`);
      restore(shared.view);
      session.pictures = shared.pictures;
    } else return false;
    return true;
  } catch (error) {
    say(`this link cannot be read: ${error.message}`);
    return false;
  }
}

async function begin() {
  session.about = await get("/api/about");
  await readLink();
  $("model").replaceChildren(...session.about.models.map((one) => make("option", { value: one.name }, one.name)));
  chooseModel(state.model);
  $("examples-box").hidden = !session.about.examples.length;
  $("examples").replaceChildren(...session.about.examples.map((title, i) => exampleButton(i)));
  $("gallery").replaceChildren(...session.about.examples.slice(0, MOST_IN_GALLERY).map((title, i) => exampleButton(i, make("span", {}, title))));
  Object.assign(steps, session.about.curve_steps);
  compare.start(session.about);
  runs.start(session.about, openPicture);
  selectTab(state.tab);
  if (state.picture) {
    try {
      const record = await get(`/api/pictures/${state.picture}`);
      if (!session.pictures.some((one) => one.key === record.key)) session.pictures.push(record);
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
session.ready = begin().catch((error) => say(error.message));
