/* The model of this file as the page's source: it runs here, without a server. */

import { allAttentions } from "./selection.js";
import { describeRun } from "./local_manifest.js";
import { openGpu } from "./local_gpu.js";
import { lensLayers } from "./local_lens.js";
import { attributeLogit } from "./local_parts.js";
import { readPicture } from "./local_picture.js";
import { readRecording } from "./local_sound.js";
import { fromBase64, Program } from "./local_run.js";
import { answer, readInput, readTokens, talk, topIds, trace } from "./local_tasks.js";
import { Tokenizer } from "./local_text.js";
import {
  answerRows, changeRun, findProblems, measureHeads, topTokens, traceChanged,
} from "./local_whatif.js";
import { engine } from "./source.js";
import { takePart } from "./tensor_part.js";

const KEPT = 4; // runs whose numbers can be asked for
const LARGE = 2 ** 20; // numbers of a weight; a model with smaller ones is quick without a graphics processor
const ALTERNATIVES = 3; // tokens beside each token of a path
const ELSEWHERE = "This file holds the model, but not this view of it; regard look opens it with everything.";

/** @typedef {import("./local_manifest.js").Made} Made */
/** @typedef {import("./local_tasks.js").Model} Model */
/** @typedef {{ input?: string, answer?: string, picture?: string, layers?: number[],
 *   checkpoint?: number, model?: number, ids?: number[], written?: number[],
 *   changes?: Change[] }} TraceRequest */

/** What the page asks of a server, computed here. */
export class Local {
  /** @type {true} */
  live = true;
  beams = [1];
  /** @type {Map<string, Made & { key: string }>} by id, with the request that it answers */
  #runs = new Map();
  #count = 0;

  /** @param {SavedPage} saved */
  constructor(saved) {
    this.saved = saved;
    this.template = this.manifest = saved.manifest;
    this.file = /** @type {SavedModel} */ (saved.model);
    const [reader, writer = reader] = this.file.tokenizers.map((one) => new Tokenizer(one));
    /** @type {Model} */
    this.model = { program: new Program(this.file), task: this.file.task, reader, writer };
    if (Object.values(this.model.program.weights).some(({ data }) => data.length >= LARGE)) this.useGpu();
  }

  /** Compute what pays on the graphics processor, if the browser offers one; until it is measured, and where
   * there is none, all is computed by this page. */
  async useGpu() {
    const { program } = this.model;
    program.gpu = await openGpu();
    return program.gpu;
  }

  /**
   * Run the model on an input; without one, on that which the file was saved with.
   * @param {TraceRequest} request
   */
  async trace(request) {
    this.manifest = await this.#trace(request);
    return this.manifest;
  }

  /**
   * A run, and if there are changes of What if, the same run with those that are possible.
   * @param {TraceRequest} request
   */
  async #trace({ changes = [], ...request }) {
    const [id, made] = await this.#run(request);
    const valid = changes.length ? (await this.#valid(made, changes)).valid : [];
    if (!valid.length) return describeRun(this.model, this.template, made, id);
    const changed = await traceChanged(this.model, made, valid);
    const changedId = this.#keep(changed, "");
    return { ...describeRun(this.model, this.template, changed, changedId), base: id };
  }

  /** @type {(made: Made, changes: Change[]) => Promise<{ valid: Change[], problems: (string | null)[] }>} */
  async #valid(made, changes) {
    const problems = await findProblems(this.model, made, changes);
    return { valid: changes.filter((_, i) => problems[i] === null), problems };
  }

  /** @type {(request: TraceRequest) => Promise<[string, Made]>} */
  async #run(request) {
    const key = JSON.stringify(request);
    const known = [...this.#runs].find(([, one]) => one.key === key);
    if (known) {
      this.#runs.delete(known[0]);
      this.#runs.set(...known); // the newest again
      return known;
    }
    const { task, reader } = this.model;
    const { input = this.template.input ?? "", ids } = request;
    const reading = ids?.length ? readTokens(this.model, ids, request.written) : await this.#read(request);
    const text = task.reads === "image" ? null : ids?.length
      ? reader.decode(reading.ids.text ?? reading.ids.source) : input;
    const made = { ...await trace(this.model, reading), reading, input: text, exact: Boolean(ids?.length) };
    return [this.#keep(made, key), made];
  }

  /** @type {(made: Made, key: string) => string} */
  #keep(made, key) {
    const id = `run ${++this.#count}`;
    this.#runs.set(id, { ...made, key });
    const [oldest] = this.#runs.keys();
    if (this.#runs.size > KEPT) this.#runs.delete(oldest);
    return id;
  }

  /** @param {TraceRequest} request */
  async #read({ input = this.template.input ?? "", answer: given, picture }) {
    const { task } = this.model;
    if (task.reads === "image") return readInput(this.model, await this.#pixels(picture), given);
    const [source, target] = task.writes ? splitTarget(input) : [input, undefined];
    return readInput(this.model, source, given ?? target);
  }

  /** @type {(picture: string | undefined) => Promise<Tensor>} */
  async #pixels(picture) {
    const { pixels, task } = this.file;
    const { image = [3, 1, 1] } = task;
    if (picture) return task.frames ? readRecording(picture, image) : readPicture(picture, image);
    const { shape, data } = /** @type {SavedTensor} */ (pixels);
    return { shape, data: fromBase64(data) };
  }

  /** @type {(id?: string) => Made} */
  #made(id = this.manifest.id) {
    const made = this.#runs.get(id);
    if (!made) throw new Error("The numbers of this run are no longer here; open it again.");
    return made;
  }

  /**
   * @param {string} name
   * @param {TensorPart} [part]
   * @returns {Promise<Tensor>}
   */
  async tensor(name, part = {}) {
    const weight = this.model.program.weights[name];
    const saved = this.saved.tensors[name];
    const { shape, data } = weight ?? (saved
      ? { shape: saved.shape, data: new Float32Array(fromBase64(saved.data).buffer) }
      : this.#made(part.trace).run.tensor(name));
    return takePart(name, { shape: shape.length < 2 ? [1, ...shape] : shape, data }, part);
  }

  /** @param {number[]} ids */
  async words(ids) {
    return this.model.writer.words(ids);
  }

  /**
   * The path of the answer, with the likeliest other tokens at each step.
   * @returns {Promise<SearchTree>}
   */
  async tree() {
    const { run, written } = this.#made();
    const { writer, task } = this.model;
    let total = 0;
    /** @type {number[]} */
    const chosen = [];
    const steps = (written ?? []).map((id, t) => {
      const p = run.row("probabilities", t);
      const others = topIds(p, ALTERNATIVES + 1).filter((other) => other !== id).slice(0, ALTERNATIVES);
      const ids = [id, ...others].sort((a, b) => p[b] - p[a]);
      const from = chosen[chosen.length - 1] ?? null;
      const step = ids.map((other) => ({
        token: writer.words([other])[0], from: /** @type {number} */ (from), parent: 0, p: p[other],
        score: total + Math.log(p[other]), ended: other === task.end, kept: other === id,
      }));
      chosen.push(ids.indexOf(id));
      total += Math.log(p[id]);
      return step;
    });
    return { steps, chosen, score: total };
  }

  /** @param {number} row */
  async lens(row) {
    return lensLayers(this.model, this.#made().run, row);
  }

  /** @type {(row: number, token: number) => Promise<Attribution>} */
  async attribution(row, token) {
    return attributeLogit(this.manifest, this.#made().run, row, token);
  }

  /**
   * @param {string} what
   * @param {Record<string, string | number>} [query]
   * @returns {Promise<any>}
   */
  async get(what, query = {}) {
    if (what === "models") return [];
    if (what === "heads") return this.file.heads;
    if (what === "versus") return this.#versus(this.#made(), query);
    throw new Error(ELSEWHERE);
  }

  /** What two runs predict at a row of each.
   * @type {(made: Made, query: Record<string, string | number>) => Comparison} */
  #versus(made, { other, row, other_row: otherRow }) {
    const runs = [made.run, this.#made(String(other)).run];
    const rows = runs.map((run, i) => Number([row, otherRow][i] ?? answerRows(this.model, run)[0]));
    const top = topTokens(this.model, runs[0].row("logits", rows[0]), runs[1].row("logits", rows[1]));
    const [p, q] = runs.map((run, i) => run.row("probabilities", rows[i]));
    const kl = p.reduce((sum, x, i) => sum + (x > 0 ? x * Math.log(x / q[i]) : 0), 0);
    return { rows, top, kl: Number.isFinite(kl) ? kl : null };
  }

  /**
   * @param {string} what
   * @param {any} body
   * @returns {Promise<any>}
   */
  async send(what, body) {
    if (what === "trace") return this.#trace(body);
    if (what !== "change") throw new Error(ELSEWHERE);
    const made = this.#made(body.trace);
    const { valid, problems } = await this.#valid(made, body.changes);
    const wrong = problems.find((problem) => problem !== null);
    if (wrong && !body.lenient) throw new Error(wrong);
    const result = await changeRun(this.model, made, valid, body.row);
    return { ...result, problems, patchable: this.file.patchable };
  }

  /**
   * The objects of an answer as they come.
   * @param {string} what
   * @param {any} body
   * @param {AbortSignal} signal
   * @returns {AsyncGenerator<any>}
   */
  async *lines(what, body, signal) {
    if (what === "talk") yield* talk(this.model, body.turns, signal, this.template.model.talks);
    else if (what.startsWith("effects")) {
      const made = this.#made(new URLSearchParams(what.split("?")[1]).get("trace") ?? undefined);
      for await (const effect of measureHeads(this.model, made, allAttentions(this.manifest))) {
        if (signal.aborted) return;
        yield effect;
      }
    } else throw new Error(ELSEWHERE);
  }

  async log() {
    return this.saved.log;
  }

  /** How far the run is: it was saved when it was done. */
  async progress() {
    return this.template;
  }

  /**
   * The model's greedy answer.
   * @param {{ input: string | Tensor }} request
   */
  ask({ input }) {
    return answer(this.model, input);
  }

  /** @returns {Promise<Blob>} */
  async page() {
    throw new Error("This file is the page already: copy it.");
  }
}

/** A source, and a target behind a tab.
 * @type {(text: string) => [string, string | undefined]} */
function splitTarget(text) {
  const at = text.indexOf("\t");
  return at < 0 ? [text, undefined] : [text.slice(0, at), text.slice(at + 1)];
}

/** The model of the file, also for the browser's console: await regard.ask({ input: "Hi" }). */
engine.local = (saved) => Object.assign(globalThis, { regard: new Local(saved) }).regard;
