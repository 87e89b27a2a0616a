// The picture as the model sees it, what stands in for removed pixels, and maps: fetched once, shared by all views.

import { ask, bytes } from "./api.js";
import { decode, floats } from "./pixels.js";

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

/** A finished map with its numbers and the order of its pixels. */
export async function withNumbers(record) {
  const [values, ranks] = await Promise.all(["values", "ranks"].map((name) => bytes(`/api/results/${record.key}/${name}`)));
  return { ...record, values: floats(values, record.unit), ranks: new Uint32Array(ranks) };
}

export const askMap = async (question, options) => withNumbers(await ask("/api/maps", question, options));

export const STANDARD = ["black", "mean", "blur"];
export const askCurves = async (map, references, options) => (await ask("/api/curves", { map, references }, options));

const tables = new Map();
export async function colourTable(name) {
  if (!tables.has(name)) tables.set(name, new Uint8Array(await bytes(`/api/colours/${name}`)));
  return tables.get(name);
}
