// Linked views: one zoom, one place and one cursor for all canvases that look through the same lens.

const MOST = 32;

export class Lens {
  constructor() {
    Object.assign(this, { zoom: 1, x: 0.5, y: 0.5 }); // centre of what is shown, in shares of the picture
    this.cursor = null; // place under the pointer, in shares of the picture: views may differ in size
    this.views = new Set();
    this.listeners = new Set();
    this.isDue = false;
  }

  onCursor(listener) { this.listeners.add(listener); }
  current() { return { zoom: this.zoom, x: this.x, y: this.y }; }

  set(wanted) {
    this.zoom = Math.min(MOST, Math.max(1, wanted.zoom));
    const margin = 0.5 / this.zoom;
    this.x = Math.min(1 - margin, Math.max(margin, wanted.x));
    this.y = Math.min(1 - margin, Math.max(margin, wanted.y));
    this.redraw();
  }

  whole() { this.set({ zoom: 1, x: 0.5, y: 0.5 }); }

  redraw() {
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => {
      this.isDue = false;
      for (const view of this.views) view.draw();
      for (const listener of this.listeners) listener(this.cursor);
    });
  }
}

/** The index of the pixel under a cursor, in an array of this size. */
export const pixelAt = (cursor, width, height) =>
  Math.min(height - 1, Math.floor(cursor.y * height)) * width + Math.min(width - 1, Math.floor(cursor.x * width));

export class View {
  constructor(canvas, lens) {
    [this.canvas, this.lens] = [canvas, lens];
    this.buffer = document.createElement("canvas");
    this.pointers = new Map();
    lens.views.add(this);
    canvas.title = "Click, then turn the wheel to zoom (or hold Ctrl); drag to move; double-click for all of it";
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => this.pointers.delete(event.pointerId));
    canvas.addEventListener("pointerleave", () => { lens.cursor = null; lens.redraw(); });
    canvas.addEventListener("wheel", (event) => this.roll(event), { passive: false });
    canvas.addEventListener("dblclick", () => lens.whole());
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  close() { this.lens.views.delete(this); }

  show(image) {
    this.put(image);
    this.lens.redraw();
  }

  /** Takes a new image without drawing it; for those who are in a frame already and draw at once. */
  put(image) {
    if (this.buffer.width !== image.width || this.buffer.height !== image.height) {
      [this.buffer.width, this.buffer.height] = [image.width, image.height];
      this.canvas.height = Math.round((this.canvas.width * image.height) / image.width);
    }
    this.buffer.getContext("2d").putImageData(image, 0, 0);
    this.image = image;
  }

  /** Nothing any more: what was shown belongs to something else. */
  clear() {
    this.image = null;
    this.canvas.getContext("2d").clearRect(0, 0, this.canvas.width, this.canvas.height);
  }

  /** Left, top, width and height of what is shown, in pixels of the picture. */
  window() {
    const { zoom, x, y } = this.lens, width = this.buffer.width / zoom, height = this.buffer.height / zoom;
    return [x * this.buffer.width - width / 2, y * this.buffer.height - height / 2, width, height];
  }

  draw() {
    if (!this.image || !this.canvas.isConnected) return;
    // One finger scrolls the page as long as there is nowhere to move to.
    this.canvas.style.touchAction = this.lens.zoom > 1 || this.isBrushed ? "none" : "pan-y";
    const context = this.canvas.getContext("2d"), [left, top, width, height] = this.window();
    context.imageSmoothingEnabled = this.lens.zoom < 4;
    context.drawImage(this.buffer, left, top, width, height, 0, 0, this.canvas.width, this.canvas.height);
    const { cursor } = this.lens;
    if (!cursor) return;
    const x = ((cursor.x * this.buffer.width - left) / width) * this.canvas.width;
    const y = ((cursor.y * this.buffer.height - top) / height) * this.canvas.height;
    for (const [colour, line] of [["rgb(0 0 0 / .7)", 3], ["#fff", 1]]) {
      context.strokeStyle = colour;
      context.lineWidth = line;
      context.beginPath();
      this.mark(context, x, y, this.canvas.width / width);
      context.stroke();
    }
  }

  /** A cross with an open middle. */
  mark(context, x, y) {
    for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
      context.moveTo(x + dx * 5, y + dy * 5);
      context.lineTo(x + dx * 14, y + dy * 14);
    }
  }

  /** Where an event is, in pixels of the picture. */
  place(event) {
    const box = this.canvas.getBoundingClientRect(), [left, top, width, height] = this.window();
    return { x: left + ((event.clientX - box.left) / box.width) * width, y: top + ((event.clientY - box.top) / box.height) * height };
  }

  press(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
  }

  move(event) {
    if (!this.image) return;
    const before = this.pointers.get(event.pointerId);
    if (before) this.drag(event, before);
    const place = this.place(event), x = place.x / this.buffer.width, y = place.y / this.buffer.height;
    this.lens.cursor = x >= 0 && y >= 0 && x < 1 && y < 1 ? { x, y } : null;
    this.lens.redraw();
  }

  drag(event, before) {
    const box = this.canvas.getBoundingClientRect(), { lens } = this;
    const others = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
    const next = lens.current();
    if (others.length) { // two fingers
      const [ox, oy] = others[0];
      next.zoom *= Math.hypot(event.clientX - ox, event.clientY - oy) / (Math.hypot(before[0] - ox, before[1] - oy) || 1);
    }
    next.x -= (event.clientX - before[0]) / box.width / lens.zoom;
    next.y -= (event.clientY - before[1]) / box.height / lens.zoom;
    this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
    lens.set(next);
  }

  /** The wheel scrolls the page, unless a key is held or the picture has the focus. */
  roll(event) {
    const isMeant = event.ctrlKey || event.metaKey || event.shiftKey || this.canvas.getRootNode().activeElement === this.canvas;
    if (!this.image || !isMeant) return;
    event.preventDefault();
    const { lens } = this, turn = event.deltaY || event.deltaX; // with shift held, some systems turn the wheel sideways
    const place = this.place(event), zoom = Math.min(MOST, Math.max(1, lens.zoom * Math.exp(-turn * 0.002)));
    const keep = lens.zoom / zoom, px = place.x / this.buffer.width, py = place.y / this.buffer.height;
    lens.set({ zoom, x: px + (lens.x - px) * keep, y: py + (lens.y - py) * keep }); // what is under the pointer stays
  }

  key(event) {
    const { lens } = this, step = 0.1 / lens.zoom;
    const moves = {
      ArrowLeft: { x: lens.x - step }, ArrowRight: { x: lens.x + step }, ArrowUp: { y: lens.y - step }, ArrowDown: { y: lens.y + step },
      "+": { zoom: lens.zoom * 1.25 }, "=": { zoom: lens.zoom * 1.25 }, "-": { zoom: lens.zoom / 1.25 }, 0: { zoom: 1, x: 0.5, y: 0.5 },
    };
    if (!(event.key in moves) || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    lens.set({ ...lens.current(), ...moves[event.key] });
  }
}
