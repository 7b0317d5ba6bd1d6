/* Where the numbers come from: the server of this page, or the page itself if it was saved as one file. */

import { takePart } from "./tensor_part.js";

const CACHED = 96; // answers that are kept

/** @type {(kind: string | null, buffer: ArrayBuffer) => Numbers} */
const typedArray = (kind, buffer) =>
  (kind === "uint8" ? new Uint8Array(buffer) : new Float32Array(buffer));

const GONE = "The server of this page does not answer: it was stopped, or the connection is lost. "
  + "Start it again with the same command, then try again.";

/** The server answered with an error. */
export class StatusError extends Error {
  /**
   * @param {number} status
   * @param {string} message
   */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** @type {(path: string, options?: RequestInit) => Promise<Response>} */
async function request(path, options) {
  const answer = await fetch(path, options).catch((error) => {
    throw error instanceof TypeError ? new Error(GONE) : error; // or it was aborted
  });
  if (answer.ok) return answer;
  const text = await answer.text();
  throw new StatusError(answer.status, text.slice(0, 400) || `the server answered ${answer.status}`);
}

/** @type {(body: object, signal?: AbortSignal, headers?: Record<string, string>) => RequestInit} */
const postOptions = (body, signal, headers) => ({
  method: "POST",
  headers: { "Content-Type": "application/json", ...headers },
  body: JSON.stringify(body),
  signal,
});

/** @type {(path: string, body: object, signal?: AbortSignal) => Promise<any>} */
const post = async (path, body, signal) => (await request(path, postOptions(body, signal))).json();

/** Everything over HTTP, from this machine. */
export class Server {
  /** @type {true} */
  live = true;
  /** @type {number[] | null} those that a search can have; null: any */
  beams = null;
  /** @type {Map<string, Promise<any>>} */
  #cache = new Map(); // every path names its trace
  /** @type {AbortController | undefined} */
  #tracing;
  /** @type {Manifest} */
  manifest = /** @type {any} */ (null);

  /**
   * Run the model on an input.
   * @param {object} run
   */
  async trace(run) {
    this.#tracing?.abort(); // the server stops work that nobody waits for
    const tracing = new AbortController();
    this.#tracing = tracing;
    this.manifest = await post("/api/trace", run, tracing.signal);
    return this.manifest;
  }

  /**
   * A tensor, or a part of it.
   * @param {string} name
   * @param {TensorPart} [part]
   * @returns {Promise<Tensor>}
   */
  tensor(name, { head, rows, columns, most, as, trace = this.manifest.id } = {}) {
    const query = new URLSearchParams({ trace, name });
    for (const [key, value] of Object.entries({ head, rows, columns, most, as })) {
      if (value !== undefined && value !== null) query.set(key, String(value));
    }
    return this.#cached(`/api/tensor?${query}`, async (answer) => ({
      shape: (answer.headers.get("X-Shape") ?? "").split(",").filter(Boolean).map(Number),
      data: typedArray(answer.headers.get("X-Type"), await answer.arrayBuffer()),
    }));
  }

  /**
   * The tokens of some ids.
   * @param {number[]} ids
   * @returns {Promise<string[]>}
   */
  words(ids) {
    return this.get("words", { ids: ids.join(",") });
  }

  /**
   * The search for the answer, with so many beams.
   * @param {number} beams
   * @returns {Promise<SearchTree>}
   */
  tree(beams) {
    return this.get("tree", { beams });
  }

  /**
   * What each layer would predict at a position.
   * @param {number} row
   * @returns {Promise<Lens>}
   */
  lens(row) {
    return this.get("lens", { row });
  }

  /**
   * What each part adds to the logit of a token.
   * @param {number} row
   * @param {number} token
   * @returns {Promise<Attribution>}
   */
  attribution(row, token) {
    return this.get("attribution", { row, token });
  }

  /**
   * GET /api/what, for this run.
   * @param {string} what
   * @param {Record<string, string | number>} [query]
   * @returns {Promise<any>}
   */
  get(what, query = {}) {
    const all = Object.entries({ trace: this.manifest.id, ...query });
    return this.#cached(`/api/${what}?${new URLSearchParams(all.map(([k, v]) => [k, String(v)]))}`);
  }

  /**
   * POST /api/what, for this run.
   * @param {string} what
   * @param {object} body
   * @returns {Promise<any>}
   */
  send(what, body) {
    return post(`/api/${what}`, { trace: this.manifest.id, ...body });
  }

  /**
   * Pause the training of this page or change its learning rate, with the token of its address.
   * @param {object} body
   */
  async steer(body) {
    const token = sessionStorage.getItem("control") ?? "";
    await request("/api/training", postOptions(body, undefined, { "X-Token": token }));
  }

  /**
   * The log as it is now: the run may be going on.
   * @returns {Promise<LogRow[]>}
   */
  async log() {
    return (await request(`/api/log?trace=${this.manifest.id}`)).json();
  }

  /**
   * How far the run is.
   * @returns {Promise<Pick<Manifest, "logged" | "step" | "steps" | "film" | "newest" | "training"
   *   | "control">>}
   */
  async progress() {
    return (await request(`/api/progress?trace=${this.manifest.id}`)).json();
  }

  /**
   * POST or GET /api/what: the objects of the answer as they come.
   * @param {string} what
   * @param {object | null} body
   * @param {AbortSignal} signal
   * @returns {AsyncGenerator<any>}
   */
  async *lines(what, body, signal) {
    const answer = await request(`/api/${what}`, body ? postOptions(body, signal) : { signal });
    const reader = /** @type {ReadableStream<Uint8Array>} */ (answer.body).getReader();
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      const parts = (rest + decoder.decode(value, { stream: !done })).split("\n");
      rest = parts.pop() ?? "";
      for (const part of parts) {
        const item = JSON.parse(part);
        if (item.error) throw new Error(item.error);
        yield item;
      }
      if (done) return;
    }
  }

  /** This page as one file. */
  async page() {
    return (await request(`/api/page?trace=${this.manifest.id}`)).blob();
  }

  /**
   * @param {string} path
   * @param {(answer: Response) => Promise<any>} [read]
   */
  #cached(path, read = (answer) => answer.json()) {
    let result = this.#cache.get(path);
    this.#cache.delete(path); // the latest is the last
    result ??= request(path).then(read);
    this.#cache.set(path, result);
    result.catch(() => this.#cache.delete(path));
    const [oldest] = this.#cache.keys();
    if (this.#cache.size > CACHED) this.#cache.delete(oldest);
    return result;
  }
}

const ABSENT = "These numbers are not in this file, which holds only what fits into a few megabytes. "
  + "Open the model with regard look to see them.";

/** @param {string} text */
export const fromBase64 = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

/** The same answers from what was written into the page. */
export class Saved {
  /** @type {false} */
  live = false;
  /** @type {Map<string, Numbers>} */
  #decoded = new Map();

  /** @param {SavedPage} saved */
  constructor(saved) {
    this.saved = saved;
    this.manifest = saved.manifest;
  }

  async trace() {
    return this.manifest;
  }

  /**
   * @param {string} name
   * @param {TensorPart} [part]
   * @returns {Promise<Tensor>}
   */
  async tensor(name, { head, rows, columns, most, as } = {}) {
    const saved = this.saved.tensors[name];
    if (!saved || !this.#holds(name, saved, rows, columns)) throw new Error(ABSENT);
    if (saved.row !== undefined) rows = undefined;
    const data = this.#decoded.get(name) ?? typedArray(saved.type, fromBase64(saved.data).buffer);
    this.#decoded.set(name, data);
    return takePart(name, { shape: saved.shape, data }, { head, rows, columns, most, as });
  }

  /**
   * Is this part in the file? Of some tensors only one row is, or they are pooled.
   * @param {string} name
   * @param {SavedTensor} saved
   * @param {string | undefined} rows
   * @param {string | undefined} columns
   */
  #holds(name, saved, rows, columns) {
    if (saved.row !== undefined) return rows === `${saved.row}:${saved.row + 1}`;
    const full = (this.manifest.tensors[name]?.shape ?? saved.shape).slice(-2);
    const exact = full.every((size, i) => size === saved.shape.slice(-full.length)[i]);
    return exact || (rows === undefined && columns === undefined);
  }

  /** @param {number[]} ids */
  async words(ids) {
    return ids.map((id) => this.saved.words[id] ?? `<${id}>`);
  }

  get beams() {
    return Object.keys(this.saved.trees).map(Number);
  }

  /** @param {number} beams */
  async tree(beams) {
    return this.saved.trees[beams];
  }

  /** @param {number} row */
  async lens(row) {
    if (!this.saved.lenses[row]) throw new Error(ABSENT);
    return this.saved.lenses[row];
  }

  /** @type {(row: number, token: number) => Promise<Attribution>} */
  async attribution(row, token) {
    const found = this.saved.attributions[`${row},${token}`];
    if (!found) throw new Error(ABSENT);
    return found;
  }

  async log() {
    return this.saved.log;
  }
}

/**
 * The page's source: the server, what was saved, or the model that is in the file. The engine of such a model
 * is in its file only, and adds itself here.
 * @type {{ local: ((saved: SavedPage) => Source) | null }}
 */
export const engine = { local: null };

/** @type {(saved: SavedPage | null) => Source} */
export function openSource(saved) {
  if (!saved) return new Server();
  return saved.model && engine.local ? engine.local(saved) : new Saved(saved);
}
