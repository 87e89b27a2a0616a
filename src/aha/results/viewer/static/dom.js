// Making elements without ever parsing text as markup.

export const $ = (id) => document.getElementById(id);

export function make(tag, options = {}, ...children) {
  const { class: classes, on = {}, data = {}, ...rest } = options;
  const element = document.createElement(tag);
  if (classes) element.className = classes;
  for (const [name, listener] of Object.entries(on)) element.addEventListener(name, listener);
  Object.assign(element.dataset, data);
  for (const [name, value] of Object.entries(rest)) {
    if (name.startsWith("aria-") || name === "role" || name === "for") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

let timer;
/** One line for people; calm ones go away by themselves. */
export function say(line, { calm = false } = {}) {
  clearTimeout(timer);
  const box = $("message");
  box.replaceChildren(make("span", {}, line), make("button", { type: "button", "aria-label": "Close", on: { click: () => say("") } }, "×"));
  box.hidden = !line;
  box.classList.toggle("calm", calm);
  if (calm) timer = setTimeout(() => { box.hidden = true; }, 4000);
}

export const show = (value, digits = 2) => {
  const shown = value.toFixed(digits);
  return Number(shown) === 0 ? (0).toFixed(digits) : shown;
};
export const short = (value) => (value === 0 ? "0" : Math.abs(value) >= 0.01 && Math.abs(value) < 1000 ? value.toPrecision(3) : value.toExponential(1));

/**
 * A bar with its job's progress and a button that cancels it, and what else is to be said. A row that is there already is
 * brought up to date: its button keeps the focus, and a click that has begun.
 */
export function showProgress(place, state, onCancel, ...more) {
  let row = place.firstElementChild;
  if (!row?.matches(".progress.under-way")) {
    row = make("div", { class: "progress under-way" }, make("progress", { max: 1 }), make("span"), make("button", { type: "button", on: { click: () => row.onCancel() } }, "Cancel"));
    place.replaceChildren(row);
  }
  const [bar, told] = row.children;
  row.onCancel = onCancel;
  bar.setAttribute("aria-label", state.kind);
  if (state.progress === null) bar.removeAttribute("value");
  else bar.value = state.progress;
  const share = state.progress === null ? "" : `${Math.round(100 * state.progress)} %, `;
  told.textContent = state.status === "waiting" ? (state.ahead ? `${state.ahead} ahead` : "next") : `${share}${Math.round(state.seconds)} s`;
  row.title = state.status === "waiting" ? `Waits for ${state.ahead || "no"} other ${state.ahead === 1 ? "job" : "jobs"}` : `${state.images} ${state.images === 1 ? "image" : "images"} shown to the model so far`;
  while (row.nextSibling) row.nextSibling.remove();
  place.append(...more);
}
