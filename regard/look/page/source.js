/* Where the numbers come from: the server that the page came from, or the page itself if it was saved. */

const KEPT = 96; // tensors that stay at hand

function typed(kind, buffer) {
  return kind === "uint8" ? new Uint8Array(buffer) : new Float32Array(buffer);
}

async function checked(answer) {
  if (answer.ok) return answer;
  const text = await answer.text();
  throw new Error(text.slice(0, 400) || `the server answered ${answer.status}`);
}

const post = async (path, body) => (await checked(await fetch(path, {
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify(body),
}))).json();

/** Everything by HTTP, from this machine. */
export class Server {
  live = true;
  #kept = new Map();

  async trace(asked) {
    this.manifest = await post("/api/trace", asked);
    this.#kept.clear();
    return this.manifest;
  }

  /** {shape, data} of a tensor, or of a head, rows and columns of it; `most` pools to so many each way. */
  tensor(name, { head, rows, columns, most, as, trace = this.manifest.id } = {}) {
    const query = new URLSearchParams({ trace, name });
    for (const [key, value] of Object.entries({ head, rows, columns, most, as })) {
      if (value !== undefined && value !== null) query.set(key, value);
    }
    return this.#once(`/api/tensor?${query}`, async (answer) => ({
      shape: answer.headers.get("X-Shape").split(",").filter(Boolean).map(Number),
      data: typed(answer.headers.get("X-Type"), await answer.arrayBuffer()),
    }));
  }

  words(ids) {
    return this.#once(`/api/words?ids=${ids.join(",")}`, (answer) => answer.json());
  }

  /** How the answer was found; and what each layer would have said at a place. */
  tree(beams) {
    return this.#once(`/api/tree?trace=${this.manifest.id}&beams=${beams}`, (answer) => answer.json());
  }

  lens(row) {
    return this.#once(`/api/lens?trace=${this.manifest.id}&row=${row}`, (answer) => answer.json());
  }

  /** What one view alone asks, of the run that is looked at: nothing is changed by it, or something is computed. */
  get(what, asked = {}) {
    return this.#once(`/api/${what}?${new URLSearchParams({ trace: this.manifest.id, ...asked })}`, (answer) => answer.json());
  }

  send(what, asked) {
    return post(`/api/${what}`, { trace: this.manifest.id, ...asked });
  }

  log() {
    return this.#once("/api/log", (answer) => answer.json());
  }

  ask(asked) {
    return post("/api/ask", asked);
  }

  async page() {
    return (await checked(await fetch(`/api/page?trace=${this.manifest.id}`))).blob();
  }

  #once(path, read) {
    let found = this.#kept.get(path);
    this.#kept.delete(path); // the latest stands last
    found ??= fetch(path).then(checked).then(read);
    this.#kept.set(path, found);
    found.catch(() => this.#kept.delete(path));
    if (this.#kept.size > KEPT) this.#kept.delete(this.#kept.keys().next().value);
    return found;
  }
}

const ABSENT = "These numbers are not in this file: it holds what fits into some megabytes. Open the model with regard look to see them.";
const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

/** The same answers from what was written into the page. */
export class Saved {
  live = false;
  #read = new Map();

  constructor(kept) {
    this.kept = kept;
    this.manifest = kept.manifest;
  }

  async trace() {
    return this.manifest;
  }

  async tensor(name, { head, rows, columns, most, as } = {}) {
    const kept = this.kept.tensors[name];
    const full = this.manifest.tensors[name]?.shape ?? kept?.shape;
    const whole = kept && full.slice(-2).every((many, i) => many === kept.shape.slice(-full.slice(-2).length)[i]);
    const alone = kept?.row !== undefined; // one row of many
    if (!kept || (alone ? rows !== `${kept.row}:${kept.row + 1}` : !whole && (rows !== undefined || columns !== undefined))) throw new Error(ABSENT);
    if (alone) rows = undefined;
    if (!this.#read.has(name)) this.#read.set(name, typed(kept.type, bytes(kept.data).buffer));
    let found = { shape: kept.shape, data: this.#read.get(name) };
    if (head !== undefined && head !== null && found.shape.length > 2) found = slice(found, Number(head));
    if (rows !== undefined || columns !== undefined) found = part(found, rows, columns);
    if (most) found = pooled(found, most);
    return as === "uint8" && found.data instanceof Float32Array ? shares(found) : found;
  }

  async words(ids) {
    return ids.map((id) => this.kept.words[id] ?? `<${id}>`);
  }

  get beams() {
    return Object.keys(this.kept.trees).map(Number);
  }

  async tree(beams) {
    return this.kept.trees[beams];
  }

  async lens(row) {
    if (!this.kept.lenses[row]) throw new Error(ABSENT);
    return this.kept.lenses[row];
  }

  async log() {
    return this.kept.log;
  }
}

function slice({ shape, data }, head) {
  const many = shape.slice(1).reduce((a, b) => a * b, 1);
  return { shape: shape.slice(1), data: data.subarray(head * many, (head + 1) * many) };
}

/** "3:5" of n as [3, 5]. */
function range(text, n) {
  if (text === undefined || text === null) return [0, n];
  const [from, to] = String(text).split(":").map(Number);
  return [from, Math.min(to, n)];
}

function part({ shape, data }, rows, columns) {
  const [height, width] = shape.slice(-2);
  const [top, bottom] = range(rows, height);
  const [left, right] = range(columns, width);
  const many = data.length / (height * width);
  const found = new data.constructor(many * (bottom - top) * (right - left));
  let at = 0;
  for (let n = 0; n < many; n++) {
    for (let y = top; y < bottom; y++) {
      const row = (n * height + y) * width;
      found.set(data.subarray(row + left, row + right), at);
      at += right - left;
    }
  }
  return { shape: [...shape.slice(0, -2), bottom - top, right - left], data: found };
}

/** Of neighbours, the largest: at most so many each way. */
export function pooled({ shape, data }, most) {
  const [height, width] = shape.slice(-2);
  const [tall, wide] = [Math.min(height, most), Math.min(width, most)];
  if (tall === height && wide === width) return { shape, data };
  const many = data.length / (height * width);
  const found = new data.constructor(many * tall * wide).fill(data.constructor === Uint8Array ? 0 : -Infinity);
  const column = Int32Array.from({ length: width }, (_, x) => place(x, width, wide));
  for (let n = 0; n < many; n++) {
    for (let y = 0; y < height; y++) {
      const to = (n * tall + place(y, height, tall)) * wide;
      const from = (n * height + y) * width;
      for (let x = 0; x < width; x++) {
        if (data[from + x] > found[to + column[x]]) found[to + column[x]] = data[from + x];
      }
    }
  }
  return { shape: [...shape.slice(0, -2), tall, wide], data: found };
}

/** In which of `few` groups of neighbours the i-th of `many` is: group g begins at floor(g * many / few). */
export const place = (i, many, few) => Math.floor(((i + 1) * few - 1) / many);

function shares({ shape, data }) {
  const many = shape.slice(-2).reduce((a, b) => a * b, 1);
  const found = new Uint8Array(data.length);
  for (let n = 0; n < data.length; n += many) {
    let peak = 0;
    for (let i = n; i < n + many; i++) peak = Math.max(peak, data[i]);
    for (let i = n; i < n + many; i++) found[i] = peak ? Math.round((255 * data[i]) / peak) : 0;
  }
  return { shape, data: found };
}
