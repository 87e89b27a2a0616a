// What a visitor takes along: a link, Python for the same maps, an archive.

import { post, text } from "./api.js";
import * as compare from "./compare.js";
import { $, say } from "./dom.js";
import { lens } from "./scene.js";
import { session } from "./session.js";
import { setLink, state } from "./state.js";

export async function share() {
  Object.assign(state, lens.current());
  try {
    const { key } = await post("/api/sessions", { pictures: session.pictures.map((one) => one.key), view: state });
    const link = `${location.origin}/#s=${key}`;
    setLink(link);
    if (!navigator.clipboard) return say(link); // pages that come by plain HTTP from another host have none
    await navigator.clipboard.writeText(link).then(() => say("The link is in the clipboard.", { calm: true }), () => say(link, { calm: true }));
  } catch (error) { say(error.message); }
  return undefined;
}

export function openDialog(title, content) {
  $("dialog-title").textContent = title;
  $("dialog-text").textContent = content;
  $("dialog").showModal();
}

/** Into the clipboard; where there is none, or it is refused, the text is marked for the keyboard. */
export async function copyDialog() {
  try {
    await navigator.clipboard.writeText($("dialog-text").textContent);
  } catch { getSelection().selectAllChildren($("dialog-text")); }
}

/** A download waits for maps that are still under way, and says which. */
export async function download(event) {
  const link = $("download"), late = compare.missing();
  if (!state.picture) {
    event.preventDefault();
    say("open a picture first: a download holds its maps", { calm: true });
  } else if (late.length) {
    event.preventDefault();
    say(`The download starts when ${late.join(", ")} ${late.length > 1 ? "are" : "is"} there.`, { calm: true });
    const turn = session.generation;
    await compare.settled();
    if (turn !== session.generation) return;
    const lost = compare.missing();
    if (lost.length) say(`${lost.join(", ")}: no map, so ${link.href ? "the download is without" : "there is nothing to download"}`);
    if (link.href) location.href = link.href;
  } else if (!link.href) {
    event.preventDefault();
    say("there are no maps yet; add a method", { calm: true });
  }
}

export async function showCode() {
  const keys = compare.mapKeys();
  if (!keys.length) return say("there are no maps yet", { calm: true });
  try {
    openDialog("The same maps in Python", await text(`/api/snippet?maps=${keys.join(",")}`));
  } catch (error) { say(error.message); }
  return undefined;
}
