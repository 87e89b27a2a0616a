// Numbers into pixels: pure functions over typed arrays, quick enough for every frame.

const HALVES = (() => {
  const table = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits++) {
    const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
    if (exponent === 0) table[bits] = sign * fraction * 2 ** -24;
    else if (exponent === 31) table[bits] = fraction ? NaN : sign * Infinity;
    else table[bits] = sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  }
  return table;
})();

/** Half-precision shares of a unit, as floats. */
export function floats(buffer, unit = 1) {
  const halves = new Uint16Array(buffer);
  const values = new Float32Array(halves.length);
  for (let i = 0; i < halves.length; i++) values[i] = HALVES[halves[i]] * unit;
  return values;
}

/** An <img>-able blob as ImageData. */
export async function decode(buffer, type = "image/png") {
  const bitmap = await createImageBitmap(new Blob([buffer], { type }), { colorSpaceConversion: "none" });
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0);
  return context.getImageData(0, 0, bitmap.width, bitmap.height);
}

export const isSigned = (map, choice) => (choice === "auto" ? map.signed : choice === "yes");

// As the library draws: strong evidence dense, weak evidence nearly clear.
const DENSITY = 0.6;

/** A map over its picture, alone, or as a mask of its top pixels. */
export function paintMap(picture, map, { mode, opacity, signed, table, top }) {
  const out = new ImageData(picture.width, picture.height);
  const from = picture.data, to = out.data, { values, ranks } = map;
  if (mode === "mask") {
    const last = Math.round((top / 100) * values.length);
    for (let i = 0, p = 0; i < values.length; i++, p += 4) {
      const light = ranks[i] < last ? 1 : 0.14;
      to[p] = from[p] * light; to[p + 1] = from[p + 1] * light; to[p + 2] = from[p + 2] * light; to[p + 3] = 255;
    }
    return out;
  }
  const low = signed ? -map.limit : map.low, high = signed ? map.limit : map.high;
  const span = high - low || 1, isFlat = high === low;
  for (let i = 0, p = 0; i < values.length; i++, p += 4) {
    const place = isFlat ? (signed ? 0.5 : 0) : Math.min(1, Math.max(0, (values[i] - low) / span));
    const strength = signed ? Math.abs(place - 0.5) * 2 : place;
    const weight = mode === "map" ? 1 : opacity * strength ** DENSITY;
    const colour = Math.round(place * 255) * 3;
    to[p] = from[p] * (1 - weight) + table[colour] * weight;
    to[p + 1] = from[p + 1] * (1 - weight) + table[colour + 1] * weight;
    to[p + 2] = from[p + 2] * (1 - weight) + table[colour + 2] * weight;
    to[p + 3] = 255;
  }
  return out;
}

/** The picture whose `count` first pixels are replaced by the reference (delete), or alone left of it (insert). */
export function paintPerturbed(picture, reference, ranks, count, kind, out) {
  const image = new Uint32Array(picture.data.buffer), blank = new Uint32Array(reference.data.buffer);
  const to = new Uint32Array(out.data.buffer);
  const deletes = kind === "delete";
  for (let i = 0; i < ranks.length; i++) to[i] = (ranks[i] < count) === deletes ? blank[i] : image[i];
  return out;
}

/** Each place in the colour of the class that wins it, dense where it wins clearly and strongly. */
export function paintWinners(picture, maps, shares, classes, colours, opacity) {
  const out = new ImageData(picture.width, picture.height);
  const size = picture.width * picture.height, from = picture.data, to = out.data;
  let most = 0;
  for (const value of maps) most = Math.max(most, value);
  for (let i = 0, p = 0; i < size; i++, p += 4) {
    let winner = 0;
    for (let k = 1; k < classes; k++) if (shares[k * size + i] > shares[winner * size + i]) winner = k;
    const clarity = Math.max(0, (shares[winner * size + i] * classes - 1) / (classes - 1));
    const strength = most ? Math.min(1, Math.max(0, maps[winner * size + i] / most)) : 0;
    const weight = opacity * strength ** DENSITY * Math.sqrt(clarity);
    const grey = 0.3 * from[p] + 0.59 * from[p + 1] + 0.11 * from[p + 2];
    for (let c = 0; c < 3; c++) to[p + c] = (0.5 * from[p + c] + 0.5 * grey) * (1 - weight) + colours[winner][c] * weight;
    to[p + 3] = 255;
  }
  return out;
}

/** The height of a curve at a share of pixels, between its measured points. */
export function heightAt(fractions, heights, share) {
  let i = 1;
  while (i < fractions.length - 1 && fractions[i] < share) i++;
  const t = (share - fractions[i - 1]) / (fractions[i] - fractions[i - 1] || 1);
  return heights[i - 1] + Math.min(1, Math.max(0, t)) * (heights[i] - heights[i - 1]);
}

/** The bytes of a base64 text. */
export const bytesOf = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
