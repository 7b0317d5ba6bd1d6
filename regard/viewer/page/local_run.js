/* A saved model at work: the steps of its program on the tokens of its sides, as far as there are tokens.

   A value is a list of rows. What has been computed stays, so that one more token costs one more row of each
   value of its side: keys and values of former tokens are those of a cache. */

import { IMAGE_OPERATIONS, ROWS_OF_IMAGES } from "./local_images.js";
import { linearInputs, linearRows, rowOperation } from "./local_ops.js";

/** Changes of What if: `edit` may change each row before it is used; to keys of `hide` nothing attends.
 * @typedef {(name: string, t: number, row: Float32Array) => Float32Array} Edit
 * @typedef {{ edit?: Edit, hide?: number[] }} Edits */

/** A model of a file: its steps and weights. */
export class Program {
  /** For large products, if the browser offers one.
   * @type {import("./local_gpu.js").Gpu | null} */
  gpu = null;

  /** @param {SavedModel} saved */
  constructor({ program, globals, weights }) {
    this.steps = program;
    this.globals = globals;
    this.names = program.flat().map(({ name }) => name);
    /** @type {Map<string, ProgramStep>} */
    this.byName = new Map(program.flat().map((step) => [step.name, step]));
    /** @type {Record<string, Weight>} */
    this.weights = Object.fromEntries(Object.entries(weights).map(([name, w]) => [name, readWeight(w)]));
    for (const [name, { like }] of Object.entries(weights)) if (like) this.weights[name] = this.weights[like];
    this.kept = new Set(program.flat().flatMap(({ does, k, v, x }) =>
      (does === "before" ? [String(x)] : [k, v].filter((name) => name !== undefined))));
  }
}

/** Bytes as their base64 says.
 * @param {string} text */
export function fromBase64(text) {
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = characters.charCodeAt(i);
  return bytes;
}

/** Weights as float32; those of eight bits, which have a scale for each row, also as they are.
 * @type {(saved: SavedWeight) => Weight} */
function readWeight({ shape, data, scale }) {
  const { buffer } = fromBase64(data);
  if (!scale) return { shape, data: new Float32Array(buffer) };
  const [scales, integers] = [new Float32Array(fromBase64(scale).buffer), new Int8Array(buffer)];
  const numbers = new Float32Array(integers.length);
  for (let i = 0; i < numbers.length; i++) numbers[i] = integers[i] * scales[Math.floor(i / shape[1])];
  return { shape, data: numbers, int8: { integers, scales } };
}

/** Whether a step is a product of values that are not waited for.
 * @type {(step: ProgramStep | ProgramStep[], waiting: Map<string, unknown>) => boolean} */
const isProductOfOthers = (step, waiting) =>
  !Array.isArray(step) && step.does === "linear" && ![step.x].flat().some((x) => waiting.has(String(x)));

/** The model on one input. */
export class Run {
  /** @type {Record<string, number[]>} */
  ids;
  /** @type {Map<string, (Float32Array | null)[]>} */
  #rows = new Map();
  /** @type {Map<string, Tensor>} */
  #images = new Map();

  /**
   * @param {Program} program
   * @param {Reading} reading
   * @param {Edits} [edits]
   */
  constructor(program, { ids, counts = {}, second = Infinity, may, pixels }, edits = {}) {
    this.program = program;
    this.ids = Object.fromEntries(Object.entries(ids).map(([side, row]) => [side, [...row]]));
    this.counts = { ...counts }; // rows of a side that has no ids: the regions of an image
    const { globals } = program;
    if (globals !== null) {
      this.counts.globals = typeof globals === "number" ? globals : ids.text.indexOf(globals.before);
    }
    this.second = second;
    this.may = may; // where an answer may begin or end
    this.edits = edits;
    if (pixels) this.#images.set("pixels", pixels);
    for (const name of program.names) this.#rows.set(name, []);
  }

  /** @param {string} name */
  weight(name) {
    return this.program.weights[name];
  }

  /**
   * A row of a value, or of a weight.
   * @param {string} name
   * @param {number} t
   */
  row(name, t) {
    if (!name.startsWith("@")) return /** @type {Float32Array} */ (this.#rows.get(name)?.[t]);
    const { shape, data } = this.weight(name);
    const width = shape[shape.length - 1];
    return data.subarray(t * width, (t + 1) * width);
  }

  /**
   * How many rows a value has; or the tokens of a side.
   * @param {string | number} name
   * @returns {number}
   */
  count(name) {
    if (typeof name === "number") return name;
    const step = this.program.byName.get(name);
    if (!step) return this.ids[name]?.length ?? this.counts[name] ?? 0;
    return this.count(step.rows);
  }

  /** @param {string} name */
  image(name) {
    return /** @type {Tensor} */ (this.#images.get(name));
  }

  /** How many keys an attention has, by the name of its mask.
   * @param {string} name */
  keys(name) {
    const part = name.slice(0, name.lastIndexOf("."));
    return this.count(`${part}.k`);
  }

  /** The keys that are hidden from an attention.
   * @param {string} name */
  hidden(name) {
    const { hide = [] } = this.edits;
    const part = name.slice(0, name.lastIndexOf("."));
    const side = this.program.byName.get(`${part}.k`)?.rows;
    return hide.length && side === ("source" in this.ids || "source" in this.counts ? "source" : "text")
      ? hide : [];
  }

  /** Compute what the tokens so far allow. `brief`: only what leads to the logits of the last one. */
  async advance({ brief = false } = {}) {
    /** Products under way elsewhere, such as those of queries, keys and values.
     * @type {Map<string, Promise<void>>} */
    const waiting = new Map();
    for (const step of this.program.steps) {
      if (waiting.size && !isProductOfOthers(step, waiting)) {
        await Promise.all(waiting.values());
        waiting.clear();
      }
      if (Array.isArray(step)) this.#loop(step);
      else if (!(brief && step.name === "probabilities")) {
        const product = this.#compute(step, brief);
        if (product) waiting.set(step.name, product);
      }
    }
    await Promise.all(waiting.values());
    if (brief) this.#forget();
  }

  /** Compute a step; the promise of a product that the graphics processor computes.
   * @type {(step: ProgramStep, brief: boolean) => Promise<void> | undefined} */
  #compute(step, brief) {
    if (step.rows === "image") {
      if (this.#images.has(step.name)) return;
      this.#images.set(step.name, IMAGE_OPERATIONS[step.does](this, step));
      return;
    }
    const rows = /** @type {(Float32Array | null)[]} */ (this.#rows.get(step.name));
    const to = this.count(step.rows);
    if (brief && step.name === "logits") while (rows.length < to - 1) rows.push(null);
    if (step.does === "linear" && step.row === undefined) {
      const [inputs, { gpu }] = [linearInputs(this, step, rows.length, to), this.program];
      const weight = this.weight(step.W ?? "");
      const put = (/** @type {Float32Array[] | null} */ products) => {
        const more = linearRows(this, step, inputs, products);
        for (const row of more) rows.push(this.#edited(step, rows.length, row));
      };
      if (gpu?.pays(weight, inputs.length)) return gpu.product(weight, inputs).then(put);
      put(null);
      return;
    }
    while (rows.length < to) rows.push(this.#computeRow(step, rows.length));
  }

  /** @type {(step: ProgramStep, t: number) => Float32Array} */
  #computeRow(step, t) {
    const operation = ROWS_OF_IMAGES[step.does] ?? rowOperation(step);
    return this.#edited(step, t, operation(this, step, t));
  }

  /** @type {(step: ProgramStep, t: number, row: Float32Array) => Float32Array} */
  #edited({ name }, t, row) {
    return this.edits.edit ? this.edits.edit(name, t, row) : row;
  }

  /** Steps that need each other's rows of the token before, or behind.
   * @param {ProgramStep[]} steps */
  #loop(steps) {
    const all = steps.map((step) => /** @type {(Float32Array | null)[]} */ (this.#rows.get(step.name)));
    const [from, to] = [all[0].length, this.count(steps[0].rows)];
    const back = steps.some((step) => step.back);
    for (let n = from; n < to; n++) {
      const t = back ? to - 1 - (n - from) : n;
      steps.forEach((step, i) => {
        all[i][t] = this.#computeRow(step, t);
      });
    }
  }

  /** Drop the rows that no later token needs. */
  #forget() {
    for (const [name, rows] of this.#rows) {
      const { rows: side } = /** @type {ProgramStep} */ (this.program.byName.get(name));
      const grows = side === "text" || side === "target";
      if (grows && !this.program.kept.has(name) && name !== "logits") rows.fill(null);
    }
  }

  /** The last row of the logits. */
  get logits() {
    return this.row("logits", this.count("logits") - 1);
  }

  /**
   * A value as the trace of the model has it.
   * @param {string} name
   * @returns {Tensor}
   */
  tensor(name) {
    if (this.#images.has(name)) return this.image(name);
    const { heads, dims } = /** @type {ProgramStep} */ (this.program.byName.get(name));
    const rows = /** @type {Float32Array[]} */ (this.#rows.get(name));
    const width = rows[0].length / heads;
    const isMask = /\.(mask|reason)$/.test(name);
    const data = new (isMask ? Uint8Array : Float32Array)(rows.length * heads * width);
    rows.forEach((row, t) => {
      for (let h = 0; h < heads; h++) {
        data.set(row.subarray(h * width, (h + 1) * width), (h * rows.length + t) * width);
      }
    });
    const shape = dims === 1 ? [width] : dims === 2 ? [rows.length, width] : [heads, rows.length, width];
    return { shape, data };
  }
}
