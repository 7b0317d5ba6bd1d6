/* A canvas that fits into its place, is sharp on any screen, and is used with a pointer and with keys. */

import { penOf } from "./colour.js";
import { h, onKeys, readoutLine } from "./dom.js";

/** @typedef {{ width: number, height: number }} Size */

/**
 * @template {Size} L
 * @template I
 * @typedef {object} CanvasOptions
 * @property {string} id
 * @property {string} role what screen readers call it
 * @property {string} label
 * @property {(room: number) => L} layout where everything stands in so much room; its width and height
 * @property {(pen: CanvasRenderingContext2D, layout: L) => void} draw
 * @property {(x: number, y: number, layout: L) => I | null} hit the item at a point
 * @property {(item: I) => void} hover
 * @property {(item: I) => void} click
 * @property {KeyHandlers} keys
 */

/**
 * @template {Size} L
 * @template I
 */
export class Canvas {
  /** @type {L | null} null until the canvas has its place on the page */
  layout = null;
  #room = 0;

  /** @param {CanvasOptions<L, I>} options */
  constructor(options) {
    this.options = options;
    this.canvas = h("canvas", {
      id: options.id, class: "matrix", tabindex: "0",
      role: "application", "aria-roledescription": options.role, "aria-label": options.label,
      onmousemove: (/** @type {MouseEvent} */ event) => this.#point(event, options.hover),
      onclick: (/** @type {MouseEvent} */ event) => this.#point(event, options.click),
      onkeydown: onKeys(options.keys),
    });
    this.readout = readoutLine();
    this.scroll = h("div", { class: "scroll" }, this.canvas);
    new ResizeObserver(() => this.#fit(this.scroll.clientWidth)).observe(this.scroll);
  }

  /** @param {number} room */
  #fit(room) {
    if (!room || room === this.#room) return;
    this.#room = room;
    this.layout = this.options.layout(room);
    this.redraw();
  }

  /** Draw everything anew; nothing happens before the canvas has its place. */
  redraw() {
    if (!this.layout) return;
    const { width, height } = this.layout;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.#draw(this.canvas, this.layout, window.devicePixelRatio || 1);
  }

  /** @type {(canvas: HTMLCanvasElement, layout: L, ratio: number) => void} */
  #draw(canvas, layout, ratio) {
    canvas.width = Math.round(layout.width * ratio);
    canvas.height = Math.round(layout.height * ratio);
    const pen = penOf(canvas);
    pen.scale(ratio, ratio);
    pen.direction = "ltr";
    pen.textBaseline = "middle";
    this.options.draw(pen, layout);
  }

  /** What can be taken away: the canvas, and the same so many times as large. */
  get output() {
    return {
      canvas: this.canvas,
      enlarge: (/** @type {number} */ scale) => {
        const large = h("canvas");
        if (this.layout) this.#draw(large, this.layout, scale * (this.canvas.width / this.layout.width));
        return large;
      },
    };
  }

  /** @type {(event: MouseEvent, use: (item: I) => void) => void} */
  #point(event, use) {
    if (!this.layout) return;
    const frame = this.canvas.getBoundingClientRect();
    const item = this.options.hit(event.clientX - frame.left, event.clientY - frame.top, this.layout);
    if (item !== null) use(item);
  }

  /**
   * The canvas with the line below it that says what is pointed at.
   * @param {Attributes} attributes
   * @param {Child} scale what the colours mean
   * @param {Child} table the same as a table
   */
  figure(attributes, scale, table) {
    return h("figure", attributes, this.scroll, h("figcaption", {}, this.readout, scale), table);
  }
}
