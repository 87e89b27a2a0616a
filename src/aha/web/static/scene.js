// The picture as the model sees it, what stands in for removed pixels, and maps: fetched once, shared by all views.

import { Lens } from "./lens.js";
import { ask, bytes, follow, post } from "./api.js";
import { say } from "./dom.js";
import { decode, floats } from "./pixels.js";

export const lens = new Lens(); // all pictures of the page look through it

const query = (values) => new URLSearchParams(values).toString();
const decoded = new Map();

function image(path) {
  if (!decoded.has(path)) {
    decoded.set(path, bytes(path).then((buffer) => decode(buffer)));
    decoded.get(path).catch(() => decoded.delete(path));
    if (decoded.size > 24) decoded.delete(decoded.keys().next().value);
  }
  return decoded.get(path);
}

export const modelView = (picture, model) => image(`/api/pictures/${picture}/input?${query({ model })}`);
export const referenceView = (picture, model, reference) => image(`/api/pictures/${picture}/reference?${query({ model, reference })}`);

/** A picture in the eyes of a model, with what stands in for its pixels. */
export async function sceneOf(picture, model) {
  const own = { picture: await modelView(picture, model), references: {} };
  own.reference = (name) => {
    own.references[name] ??= referenceView(picture, model, name).then((view) => { own.references[name] = view; return view; },
      (error) => { delete own.references[name]; say(error.message); });
    return own.references[name];
  };
  return own;
}

/** A finished map with its numbers and the order of its pixels. */
export async function withNumbers(record) {
  const [values, ranks] = await Promise.all(["values", "ranks"].map((name) => bytes(`/api/results/${record.key}/${name}`)));
  return { ...record, values: floats(values, record.unit), ranks: new Uint32Array(ranks) };
}

/** Several methods' maps at once: the server does cheap ones first. One answer per method, a state or an error. */
export const askMaps = async (question) => (await post("/api/maps/several", question)).answers;
/** The map of a state that the server answered `question` with, which names one method. */
export const followMap = async (state, question, options) =>
  withNumbers(await follow(state, { ...options, again: async () => (await askMaps(question))[0] }));

export const steps = { coarse: 5, fine: 20 }; // of curves; the server says
export const STANDARD = ["black", "mean", "blur"];
export const askCurves = (map, references, steps, options) => ask("/api/curves", { map, references, steps }, options);

const tables = new Map();
export async function colourTable(name) {
  if (!tables.has(name)) tables.set(name, new Uint8Array(await bytes(`/api/colours/${name}`)));
  return tables.get(name);
}
