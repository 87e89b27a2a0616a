// What keys do, and the page that says so.

import { pickClass } from "./classes.js";
import * as compare from "./compare.js";
import { $ } from "./dom.js";
import { session } from "./session.js";
import { openDialog } from "./taking_away.js";
import { openTab, selectTab } from "./views.js";

const KEYS = `1 to 9        explain the first, second, ... class
c r v p t u   compare, refine, contrast, paint, target, runs
[ and ]       fewer, more pixels in the scrubber
d             delete or insert
?             this help

In an image that was clicked, or reached with Tab:
wheel, + and -  zoom in and out
arrows, drag    move; all images follow
0, double click all of it

Anywhere else the wheel scrolls the page; with Ctrl, Shift or Cmd
held it zooms the image under the pointer. On a touch screen two
fingers zoom, and one moves what is zoomed.`;
const TAB_KEYS = { c: "compare", r: "refine", v: "contrast", p: "paint", t: "target", u: "runs" };

export const showKeys = () => openDialog("Keys", KEYS);

export function onKey(event) {
  if (event.target.closest("input, select, textarea, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (/^[1-9]$/.test(event.key) && session.classes[event.key - 1]) pickClass(session.classes[event.key - 1].index);
  else if (event.key === "[") compare.nudge(-0.01);
  else if (event.key === "]") compare.nudge(0.01);
  else if (event.key === "d") compare.flip();
  else if (event.key in TAB_KEYS && !$(`tab-${TAB_KEYS[event.key]}`).disabled) { selectTab(TAB_KEYS[event.key]); openTab(); }
  else if (event.key === "?") showKeys();
}
