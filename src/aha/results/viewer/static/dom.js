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

/** A bar with its job's progress and a button that cancels it. */
export function progressRow(state, onCancel) {
  const bar = make("progress", { max: 1, "aria-label": state.kind });
  if (state.progress !== null) bar.value = state.progress;
  const share = state.progress === null ? "" : `${Math.round(100 * state.progress)} %, `;
  const told = state.status === "waiting" ? (state.ahead ? `${state.ahead} ahead` : "next") : `${share}${Math.round(state.seconds)} s`;
  const title = state.status === "waiting" ? `Waits for ${state.ahead || "no"} other ${state.ahead === 1 ? "job" : "jobs"}` : `${state.images} ${state.images === 1 ? "image" : "images"} shown to the model so far`;
  return make("div", { class: "progress", title }, bar, make("span", {}, told), make("button", { type: "button", on: { click: onCancel } }, "Cancel"));
}
