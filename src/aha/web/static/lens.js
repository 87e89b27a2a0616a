// Linked views: one zoom, one place and one cursor for all canvases.

const lens = { zoom: 1, x: 0.5, y: 0.5 }; // centre of what is shown, in shares of the picture
let cursor = null; // column and row under the pointer
const views = new Set();
const listeners = new Set();
let isDue = false;

export const onCursor = (listener) => listeners.add(listener);
export const currentLens = () => ({ ...lens });

export function setLens(wanted) {
  lens.zoom = Math.min(32, Math.max(1, wanted.zoom));
  const margin = 0.5 / lens.zoom;
  lens.x = Math.min(1 - margin, Math.max(margin, wanted.x));
  lens.y = Math.min(1 - margin, Math.max(margin, wanted.y));
  redraw();
}

export function redraw() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    for (const view of views) view.draw();
    for (const listener of listeners) listener(cursor);
  });
}

export class View {
  constructor(canvas) {
    this.canvas = canvas;
    this.buffer = document.createElement("canvas");
    this.pointers = new Map();
    views.add(this);
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => this.pointers.delete(event.pointerId));
    canvas.addEventListener("pointerleave", () => { cursor = null; redraw(); });
    canvas.addEventListener("wheel", (event) => this.roll(event), { passive: false });
    canvas.addEventListener("dblclick", () => setLens({ zoom: 1, x: 0.5, y: 0.5 }));
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  close() { views.delete(this); }

  show(image) {
    this.put(image);
    redraw();
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

  /** Left, top, width and height of what is shown, in pixels of the picture. */
  window() {
    const width = this.buffer.width / lens.zoom, height = this.buffer.height / lens.zoom;
    return [lens.x * this.buffer.width - width / 2, lens.y * this.buffer.height - height / 2, width, height];
  }

  draw() {
    if (!this.image || !this.canvas.isConnected) return;
    const context = this.canvas.getContext("2d"), [left, top, width, height] = this.window();
    context.imageSmoothingEnabled = lens.zoom < 4;
    context.drawImage(this.buffer, left, top, width, height, 0, 0, this.canvas.width, this.canvas.height);
    if (!cursor) return;
    const x = ((cursor.x + 0.5 - left) / width) * this.canvas.width, y = ((cursor.y + 0.5 - top) / height) * this.canvas.height;
    for (const [colour, line] of [["rgb(0 0 0 / .7)", 3], ["#fff", 1]]) {
      context.strokeStyle = colour;
      context.lineWidth = line;
      context.beginPath();
      for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
        context.moveTo(x + dx * 5, y + dy * 5);
        context.lineTo(x + dx * 14, y + dy * 14);
      }
      context.stroke();
    }
  }

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
    if (before) {
      const box = this.canvas.getBoundingClientRect();
      const others = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
      const next = { ...lens };
      if (others.length) { // two fingers
        const [ox, oy] = others[0];
        next.zoom *= Math.hypot(event.clientX - ox, event.clientY - oy) / (Math.hypot(before[0] - ox, before[1] - oy) || 1);
      }
      next.x -= (event.clientX - before[0]) / box.width / lens.zoom;
      next.y -= (event.clientY - before[1]) / box.height / lens.zoom;
      this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
      setLens(next);
    }
    const place = this.place(event);
    const x = Math.floor(place.x), y = Math.floor(place.y);
    cursor = x >= 0 && y >= 0 && x < this.buffer.width && y < this.buffer.height ? { x, y } : null;
    redraw();
  }

  roll(event) {
    if (!this.image) return;
    event.preventDefault();
    const place = this.place(event), zoom = Math.min(32, Math.max(1, lens.zoom * Math.exp(-event.deltaY * 0.002)));
    const keep = lens.zoom / zoom, px = place.x / this.buffer.width, py = place.y / this.buffer.height;
    setLens({ zoom, x: px + (lens.x - px) * keep, y: py + (lens.y - py) * keep }); // what is under the pointer stays
  }

  key(event) {
    const step = 0.1 / lens.zoom;
    const moves = {
      ArrowLeft: { x: lens.x - step }, ArrowRight: { x: lens.x + step }, ArrowUp: { y: lens.y - step }, ArrowDown: { y: lens.y + step },
      "+": { zoom: lens.zoom * 1.25 }, "=": { zoom: lens.zoom * 1.25 }, "-": { zoom: lens.zoom / 1.25 }, 0: { zoom: 1, x: 0.5, y: 0.5 },
    };
    if (!(event.key in moves) || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    setLens({ ...lens, ...moves[event.key] });
  }
}
