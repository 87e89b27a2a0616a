// Finished evaluations and benchmarks: their table, their images, and the way from one that stands out to its picture.

import { get, post } from "./api.js";
import { $, make, say, show } from "./dom.js";

let openPicture = () => {};
let about;

export function start(told, opener) {
  [about, openPicture] = [told, opener];
  $("runs").classList.add("panel");
  if (!about.runs.length) {
    $("runs").replaceChildren(make("p", { class: "note" }, "No runs to show. Measure with “aha evaluate … --out RUN” or “aha bench … --out RUN” and start with --run RUN."));
  }
}

export async function open() {
  if (!about.runs.length || $("runs").childElementCount) return;
  const choice = make("select", { id: "run", on: { change: () => load(Number(choice.value)) } },
    ...about.runs.map((run, i) => make("option", { value: i }, run.name)));
  $("runs").replaceChildren(make("label", {}, "Run ", choice), make("div", { class: "panel", id: "run-content" }));
  await load(0);
}

let loads = 0, lists = 0; // what was asked before the last one is not shown any more
async function load(number) {
  const turn = ++loads;
  try {
    const run = await get(`/api/runs/${number}`);
    if (turn !== loads) return;
    const columns = run.columns;
    const head = columns.map((column) => make("th", {}, column.title));
    const isOf = (row, column) => ["metric", "reference", "protocol"].every((name) => row[name] === column[name]);
    const body = run.methods.map((method) => make("tr", {}, make("td", {}, method), ...columns.map((column) => {
      const row = run.summary.find((one) => one.method === method && isOf(one, column));
      const text = row?.mean == null ? "" : show(row.mean, 3) + (row.standard_error == null ? "" : ` ± ${show(row.standard_error, 3)}`);
      return make("td", {}, text);
    })));
    const method = select("run-method", run.methods), metric = select("run-metric", columns.map((column) => column.title));
    metric.selectedIndex = Math.max(0, columns.findIndex((column) => column.metric === "ins_del"));
    const images = make("div", { class: "scroll", id: "run-images" });
    const list = () => listImages(number, method.value, columns[metric.selectedIndex], images);
    method.addEventListener("change", list);
    metric.addEventListener("change", list);
    $("run-content").replaceChildren(
      make("p", { class: "note" }, `${run.images} images, ${run.model || "model not recorded"}`),
      ...(run.has_audit ? [make("p", {}, make("a", { href: `/api/runs/${number}/audit`, target: "_blank", rel: "noopener" }, "The audit, with its verdicts"))] : []),
      ...(run.has_report ? [make("a", { href: `/api/runs/${number}/report`, target: "_blank", rel: "noopener" }, "The run's own report")] : []),
      make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, make("th", {}, "method"), ...head)), make("tbody", {}, ...body))),
      make("div", { class: "row wrap" }, make("label", {}, "Images by ", metric), make("label", {}, "of ", method)), images);
    await list();
  } catch (error) { say(error.message); }
}

const select = (id, names) => make("select", { id }, ...names.map((name) => make("option", { value: name }, name)));

async function listImages(number, method, column, place) {
  const turn = ++lists;
  try {
    const { metric, reference, protocol } = column;
    const { images } = await get(`/api/runs/${number}/images?${new URLSearchParams({ method, metric, reference, protocol })}`);
    if (turn !== lists) return;
    const rows = images.map((one) => make("tr", { class: one.outlier ? "outlier" : "" },
      make("td", {}, make("button", { type: "button", on: { click: () => jump(number, one, method) } }, one.title)),
      make("td", {}, show(one.value, 3)), make("td", {}, one.label || `class ${one.target}`)));
    place.replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, ...["image, lowest first", column.title, "target"].map((head) => make("th", {}, head)))),
      make("tbody", {}, ...rows)));
  } catch (error) { say(error.message); }
}

async function jump(number, image, method) {
  try {
    openPicture(await post(`/api/runs/${number}/images`, { image: image.image }), { target: image.target, method, model: about.runs[number].model });
  } catch (error) { say(error.message); }
}
