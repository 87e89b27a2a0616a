// A brush on a grid of cells over a picture: what painting and marking a region share.

const FINEST = 256; // cells along a side, as many as a request may carry

export class Cells {
  /** A grid over a picture of this size, nothing marked. */
  constructor({ width, height }) {
    Object.assign(this, { width, height, rows: Math.min(height, FINEST), columns: Math.min(width, FINEST) });
    this.values = new Uint8Array(this.rows * this.columns);
  }

  get isEmpty() { return !this.values.includes(1); }
  fits(other) { return this.rows === other.rows && this.columns === other.columns; }

  /** Sets everything under the brush, in pixels of the picture, on its way from one place to another. */
  stroke(from, to, size, value) {
    const steps = Math.max(1, Math.ceil(Math.hypot(to.x - from.x, to.y - from.y) / Math.max(1, size / 2)));
    for (let i = 0; i <= steps; i++) this.dab(from.x + ((to.x - from.x) * i) / steps, from.y + ((to.y - from.y) * i) / steps, size, value);
  }

  /** Sets the cells whose centres are within a circle. */
  dab(x, y, size, value) {
    const cell = { x: this.width / this.columns, y: this.height / this.rows };
    for (let row = Math.max(0, Math.floor((y - size) / cell.y)); row < Math.min(this.rows, (y + size) / cell.y + 1); row++) {
      for (let column = Math.max(0, Math.floor((x - size) / cell.x)); column < Math.min(this.columns, (x + size) / cell.x + 1); column++) {
        const isInside = Math.hypot((column + 0.5) * cell.x - x, (row + 0.5) * cell.y - y) <= size;
        if (isInside) this.values[row * this.columns + column] = value;
      }
    }
  }

  /** The cell under a pixel of the picture. */
  at(x, y) { return this.values[Math.floor((y * this.rows) / this.height) * this.columns + Math.floor((x * this.columns) / this.width)]; }

  /** What a request carries: one bit for each cell, the first in the highest bit of its byte, in base64. */
  packed() {
    const bytes = new Uint8Array(Math.ceil(this.values.length / 8));
    for (let i = 0; i < this.values.length; i++) if (this.values[i]) bytes[i >> 3] |= 128 >> (i & 7);
    let text = "";
    for (const byte of bytes) text += String.fromCharCode(byte);
    return { rows: this.rows, columns: this.columns, bits: btoa(text) };
  }
}
