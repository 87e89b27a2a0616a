// What the page shows, in one object that fits into a link.

export const TABS = ["compare", "refine", "contrast", "paint", "target", "runs"];
export const MOST_METHODS = 8;

export const state = {
  tab: "compare", model: "", other: "", picture: "", target: null, rivals: [], methods: [],
  mode: "overlay", opacity: 0.75, top: 20, cmap: "", signed: "auto",
  kind: "delete", by: 0, reference: "blur", share: 0.1,
  step: 0, rule: "grad_cam", question: "", asker: "", zoom: 1, x: 0.5, y: 0.5,
};

const isText = (value) => typeof value === "string" && value.length <= 4000;
const isIndex = (value) => Number.isInteger(value) && value >= 0 && value < 1e9;
const between = (low, high) => (value) => typeof value === "number" && value >= low && value <= high;
const oneOf = (...choices) => (value) => choices.includes(value);
const listOf = (check, most) => (value) => Array.isArray(value) && value.length <= most && value.every(check);

const CHECKS = {
  tab: oneOf(...TABS), model: isText, other: isText, picture: isText, target: (value) => value === null || isIndex(value), rivals: listOf(isIndex, 8),
  methods: listOf(isText, MOST_METHODS), mode: oneOf("overlay", "map", "mask"), opacity: between(0, 1), top: between(1, 100),
  cmap: isText, signed: oneOf("auto", "yes", "no"), kind: oneOf("delete", "insert"), by: isIndex, reference: isText,
  share: between(0, 1), step: between(0, 5), rule: isText, question: isText, asker: isText, zoom: between(1, 32), x: between(0, 1), y: between(0, 1),
};

/** Takes over what makes sense of a view from elsewhere; links may be old, cut short or made up. */
export function restore(view) {
  if (view === null || typeof view !== "object") return;
  for (const [name, check] of Object.entries(CHECKS)) {
    if (Object.hasOwn(view, name) && check(view[name])) state[name] = structuredClone(view[name]);
  }
}

const address = () => `#v=${encodeURIComponent(JSON.stringify(state))}`;
let timer, linked = "";
/** Keeps the address bar true, a moment after the last change. */
export function remember() {
  clearTimeout(timer);
  timer = setTimeout(() => { if (address() !== linked) history.replaceState(null, "", address()); }, 300);
}

/** Puts a short link into the address bar; it stays until the view is another one. */
export function setLink(link) {
  clearTimeout(timer);
  linked = address();
  history.replaceState(null, "", link);
}
