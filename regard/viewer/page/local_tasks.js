/* What a saved model reads of an input, and how its answer is written: greedily, token by token. */

import { Run } from "./local_run.js";
import { countPatches } from "./local_sound.js";
import { findAnswer, readQuestion } from "./local_span.js";
import { readWindows, splitWords } from "./local_words.js";

const BLANK = /_{2,}|\[MASK\]|<extra_id_\d+>/;
const BEST = 5; // words that are shown for a blank
const DIGITS = 6; // of a vector
const BUSY = 30; // milliseconds, then the page may draw

/** @typedef {import("./local_run.js").Program} Program */
/** @typedef {import("./local_run.js").Edits} Edits */
/** @typedef {import("./local_text.js").Tokenizer} Tokenizer */
/** A model with what its task needs.
 * @typedef {{ program: Program, task: SavedTask, reader: Tokenizer, writer: Tokenizer }} Model */

/** The part of a text that the model reads: it moves by half a context at a time.
 * @type {(ids: number[], context: number) => number[]} */
export function fitContext(ids, context) {
  const hop = context - Math.floor(context / 2);
  return ids.slice(Math.ceil(Math.max(0, ids.length - context) / hop) * hop);
}

/** @type {(count: number, task: SavedTask) => void} */
function checkLength(count, { context }) {
  if (count > context) {
    throw new Error(`a text of ${count} tokens does not fit the context of ${context}; shorten it`);
  }
}

/** Ids of the parts of a text between its blanks, with those of the blanks between them.
 * @type {(reader: Tokenizer, text: string, blank: (i: number) => number, last: boolean) => number[]} */
function encodeBlanks(reader, text, blank, last) {
  const parts = text.split(new RegExp(BLANK, "g"));
  return parts.flatMap((part, i) => [
    ...(i ? [blank(i - 1)] : []),
    ...reader.encode(last || i < parts.length - 1 ? part.trimEnd() : part),
  ]);
}

/** What an encoder reads of a text, by task; the end comes after it.
 * @type {Record<string, (model: Model, text: string) => number[]>} */
const SOURCES = {
  translate({ task, reader }, text) {
    const ids = reader.encode(text.trim());
    const most = Math.min(task.longest ?? task.context, task.context - 1);
    if (ids.length > most) {
      throw new Error(`the text has ${ids.length} tokens, and this file translates up to ${most} at once; `
        + "give one sentence");
    }
    return ids;
  },
  chat({ task, reader }, text) {
    const lines = text.split("\n").filter((line) => line.trim()).slice(-(task.turns ?? 1));
    const between = task.separator === null ? [] : [task.separator ?? 0];
    return lines.flatMap((line, i) => [...(i ? between : []), ...reader.encode(line.trim())]);
  },
  restore({ task, reader }, text) {
    const marks = task.sentinels ?? [];
    const blanks = text.split(new RegExp(BLANK, "g")).length - 1;
    if (blanks < 1 || blanks > marks.length) {
      throw new Error("mark what is missing with ___, as in: The fox ___ over the dog");
    }
    const ids = encodeBlanks(reader, text, (i) => marks[i], false);
    checkLength(ids.length + 1, task);
    return ids;
  },
};

/** Tokens as a model that continues texts reads them.
 * @type {(task: SavedTask, ids: number[]) => Reading} */
function readIds({ context }, ids) {
  const text = fitContext(ids, context);
  return { ids: { text }, unread: ids.length - text.length, all: ids };
}

/** Questions and answers in turn as a chat template writes them, up to where the next answer begins.
 * @type {(model: Model, template: SavedTemplate, turns: string[]) => Reading} */
function readTurns({ task, reader }, { begin, answer: toAnswer, next, end, trims }, turns) {
  const texts = turns.map((turn, i) => `${i === 0 ? begin : i % 2 ? toAnswer : next}${
    trims[i % 2] ? turn.trim() : turn}`);
  return readIds(task, reader.encodeSpelling(texts.join("") + end));
}

/**
 * What the model reads if the input is token ids already, and the answer perhaps, too.
 * @type {(model: Model, ids: number[], written?: number[]) => Reading & { written?: number[] }}
 */
export function readTokens({ task }, ids, written) {
  if (!task.writes) return readIds(task, ids);
  return { ids: { source: ids.slice(0, task.context), target: [task.begin ?? 0] }, written };
}

/** What a model without an encoder reads of a text, by task.
 * @type {Record<string, (model: Model, text: string) => Reading>} */
const TEXTS = {
  write({ task, reader }, text) {
    const ids = [...(task.first ?? []), ...reader.encode(text)];
    return readIds(task, ids.length ? ids : task.blank ?? [0]);
  },
  tag(model, text) {
    return { ids: { text: readWindows(model, splitWords(text))[0].ids } };
  },
  embed({ task, reader }, text) {
    const [first, end] = [task.first ?? [], task.end === null ? [] : [task.end ?? 0]];
    const all = reader.encode(text);
    const ids = all.slice(0, Math.max(1, (task.room ?? task.context) - first.length - end.length));
    return { ids: { text: [...first, ...ids, ...end] }, unread: all.length - ids.length };
  },
  next({ task, reader }, text) {
    const both = text.split("\t");
    if (both.length !== 2) {
      throw new Error("this file says whether a text follows another; give two, with a tab between");
    }
    const [one, other] = both.map((part) => [...reader.encode(part.trim()), task.end ?? 0]);
    const ids = [...(task.first ?? []), ...one, ...other];
    checkLength(ids.length, task);
    return { ids: { text: ids }, second: ids.length - other.length };
  },
  fill({ task, reader }, text) {
    const [first] = task.first ?? [0];
    if (text.includes("\t") && !BLANK.test(text)) {
      throw new Error("this file fills blanks; save it with two texts to ask whether one follows the other");
    }
    const end = task.end ?? 0;
    const inside = encodeBlanks(reader, text, () => task.mask ?? 0, true);
    if (!BLANK.test(text)) {
      const unread = Math.max(0, inside.length - (task.context - 2));
      return { ids: { text: [first, ...inside.slice(0, task.context - 2), end] }, unread };
    }
    checkLength(inside.length + 2, task);
    return { ids: { text: [first, ...inside, end] } };
  },
  replaced({ task, reader }, text) {
    if (text.includes("\t") || BLANK.test(text)) {
      throw new Error("this file finds replaced words; save it with a text that has ___, or with two texts");
    }
    const inside = reader.encode(text);
    const ids = [task.first?.[0] ?? 0, ...inside.slice(0, task.context - 2), task.end ?? 0];
    return { ids: { text: ids }, unread: Math.max(0, inside.length - (task.context - 2)) };
  },
  span(model, text) {
    const { parts: [{ ids, second, may }], unread } = readQuestion(model, text);
    return { ids: { text: ids }, second, may, unread };
  },
  classify({ task, reader }, text) {
    const [a, b] = text.split("\t").slice(0, 2).map((part) => reader.encode(part));
    const [first, end] = [task.first ?? [], task.end === null ? [] : [task.end ?? 0]];
    const room = task.context - first.length - end.length * (b ? 2 : 1);
    const half = b ? Math.max(Math.floor(room / 2), room - b.length) : room;
    const one = a.slice(0, Math.max(1, Math.min(half, room)));
    const ids = [...first, ...one, ...end];
    if (!b) return { ids: { text: ids }, unread: a.length - one.length };
    const other = b.slice(0, Math.max(0, room - one.length));
    const unread = a.length + b.length - one.length - other.length;
    return { ids: { text: [...ids, ...other, ...end] }, second: ids.length, unread };
  },
};

/**
 * What the model reads of an input. `written` are the ids of an answer, if it is given.
 * @type {(model: Model, input: string | Tensor, answer?: string) => Reading & { written?: number[] }}
 */
export function readInput(model, input, answer) {
  const { task } = model;
  if (typeof input !== "string") {
    const counts = task.frames ? countPatches(task, input) : task.counts ?? {};
    if (!task.writes) return { ids: {}, counts, pixels: input };
    const written = encodeTarget(model, answer);
    return { ids: { target: [task.begin ?? 0] }, counts, pixels: input, written };
  }
  if (!input.trim()) throw new Error("there is nothing to read; type a text");
  if (!task.writes) return TEXTS[task.reads](model, input);
  const all = SOURCES[task.reads](model, input);
  const ids = all.slice(-(task.context - 1)); // of a conversation, the oldest words are lost
  const source = [...ids, task.source_end ?? 0];
  const written = encodeTarget(model, answer, source);
  return { ids: { source, target: [task.begin ?? 0] }, written, unread: all.length - ids.length };
}

/** An answer as the model would write it; of a text with blanks, what goes into each.
 * @type {(model: Model, answer: string | undefined, source?: number[]) => number[] | undefined} */
function encodeTarget({ task, writer }, answer, source = []) {
  if (answer === undefined) return undefined;
  const end = task.end ?? 0;
  if (task.reads !== "restore") return [...writer.encode(answer), end];
  const marks = source.filter((id) => task.sentinels?.includes(id));
  const spans = answer.split(new RegExp(BLANK, "g"));
  if (spans.length !== marks.length) throw new Error("give what goes into the blanks, with ___ between");
  return [...marks.flatMap((mark, i) => [mark, ...writer.encode(spans[i])]), end];
}

/** @param {ArrayLike<number>} row */
export function argmax(row) {
  let best = 0;
  for (let i = 1; i < row.length; i++) if (row[i] > row[best]) best = i;
  return best;
}

/** The places of the largest numbers, the first of equal ones first.
 * @type {(row: ArrayLike<number>, count: number) => number[]} */
export const topIds = (row, count) =>
  Array.from({ length: row.length }, (_, i) => i).sort((a, b) => row[b] - row[a]).slice(0, count);

/** Lets the page draw and be used between two tokens. */
export const pause = () => new Promise((resolve) => {
  setTimeout(resolve, 0);
});

/**
 * The tokens that the model writes, without the end, as they come: always the likeliest one.
 * @param {Model} model
 * @param {Reading} reading
 * @param {Edits} [edits]
 * @returns {AsyncGenerator<number>}
 */
export async function* writeTokens({ program, task }, reading, edits) {
  const side = "target" in reading.ids ? "target" : "text";
  const text = [...reading.ids[side]];
  const most = side === "target" ? Math.min(task.most, 1 + task.context - text.length) : task.most;
  /** @type {Run | null} */
  let run = null;
  let paused = performance.now();
  for (let n = 0; n < most; n++) {
    if (run && run.ids[side].length < task.context) run.ids[side].push(text[text.length - 1]);
    else {
      const ids = { ...reading.ids, [side]: fitContext(text, task.context) };
      run = new Run(program, { ...reading, ids }, edits);
    }
    await run.advance({ brief: true });
    const token = argmax(run.logits);
    if (task.ends.includes(token)) return;
    text.push(token);
    yield token;
    if (performance.now() - paused > BUSY) {
      await pause();
      paused = performance.now();
    }
  }
}

/** All of these tokens.
 * @type {(model: Model, reading: Reading, edits?: Edits) => Promise<number[]>} */
export async function write(model, reading, edits) {
  const written = [];
  for await (const token of writeTokens(model, reading, edits)) written.push(token);
  return written;
}

/**
 * The answer to the last of these turns, as a server sends it: what is read, then token by token.
 * @param {Model} model
 * @param {string[]} turns
 * @param {AbortSignal} signal
 * @param {boolean} remembers whether the turns before are read, too
 */
export async function* talk(model, turns, signal, remembers) {
  const { task, writer } = model;
  const lines = turns.map((turn) => (remembers ? turn.replaceAll("\n", " ") : turn));
  const input = (remembers ? lines : lines.slice(-1)).join("\n");
  if (!task.generates || task.reads === "restore") {
    yield {};
    yield { text: (await answer(model, input)).output };
    return;
  }
  const reading = task.template ? readTurns(model, task.template, turns) : readInput(model, input);
  yield task.writes ? { source: reading.ids.source } : { ids: reading.all ?? reading.ids.text };
  const ids = [];
  let said = "";
  for await (const id of writeTokens(model, reading)) {
    if (signal.aborted) return;
    ids.push(id);
    const whole = writer.decode(ids);
    const text = whole.endsWith("\ufffd") ? "" : whole.slice(said.length); // a character is not complete yet
    said += text;
    yield { id, token: writer.words([id])[0], text };
  }
  yield { text: writer.decode(ids).slice(said.length) };
}

/**
 * The run that the page looks into: on a given answer, or the model's own.
 * @type {(model: Model, reading: Reading & { written?: number[] }, edits?: Edits) =>
 *   Promise<{ run: Run, written: number[] | null, unread: number }>}
 */
export async function trace(model, reading, edits) {
  const { task, program } = model;
  let written = null;
  let { ids, unread = 0 } = reading;
  if (task.writes) {
    written = reading.written ?? [...await write(model, reading), task.end ?? 0];
    unread += Math.max(0, written.length - task.context);
    written = written.slice(0, task.context);
    ids = { ...ids, target: [...ids.target, ...written.slice(0, -1)] };
  }
  const run = new Run(program, { ...reading, ids }, edits);
  await run.advance();
  return { run, written, unread };
}

/** The text with each blank replaced by what was written for it.
 * @type {(model: Model, source: number[], written: number[]) => string} */
function fillIn({ task, writer }, source, written) {
  const marks = task.sentinels ?? [];
  /** @type {Map<number, number[]>} */
  const spans = new Map();
  let last = -1;
  for (const id of written) {
    if (marks.includes(id)) last = id;
    else if (last >= 0) spans.set(last, [...(spans.get(last) ?? []), id]);
  }
  const filled = source.slice(0, -1).flatMap((id) => (marks.includes(id) ? spans.get(id) ?? [] : [id]));
  return writer.decode(filled);
}

/** The likeliest words for each blank.
 * @type {(model: Model, run: Run) => string} */
function fillBlanks({ task, reader }, run) {
  const blanks = run.ids.text.flatMap((id, t) => (id === task.mask ? [t] : []));
  if (!blanks.length) {
    throw new Error("mark what is missing with [MASK] or ___, as in: The fox [MASK] over the dog");
  }
  return blanks.map((t) => {
    const p = run.row("probabilities", t);
    return topIds(p, BEST).map((id) => `${reader.words([id])[0].trim()} ${p[id].toFixed(2)}`).join(", ");
  }).join("; ");
}

/** The words that were most likely replaced.
 * @type {(model: Model, run: Run) => string} */
function findReplaced({ reader }, run) {
  const words = reader.words(run.ids.text.slice(1, -1));
  const p = run.row("probabilities", 0).subarray(1, -1);
  return topIds(p, BEST).map((t) => `${words[t].trim()} ${p[t].toFixed(2)}`).join(", ");
}

/** Each word with its tag.
 * @type {(model: Model, text: string) => Promise<string>} */
async function tagWords(model, text) {
  const words = splitWords(text);
  /** @type {(string | undefined)[]} */
  const tags = [];
  for (const { ids, begins } of readWindows(model, words)) {
    const run = new Run(model.program, { ids: { text: ids } });
    await run.advance();
    tags.push(...begins.map((t) => model.task.labels?.[argmax(run.row("logits", t))]));
  }
  return words.map((word, i) => `${word}/${tags[i]}`).join(" ");
}

/** A vector as JSON, perhaps of length 1.
 * @type {(task: SavedTask, vector: Float32Array) => string} */
function writeVector({ normalize }, vector) {
  const length = normalize ? Math.hypot(...vector) : 1;
  return `[${Array.from(vector, (x) => Number((x / length).toFixed(DIGITS))).join(", ")}]`;
}

/**
 * The model's answer.
 * @type {(model: Model, input: string | Tensor) => Promise<{ output: string, ids: number[] }>}
 */
export async function answer(model, input) {
  const { task, program, writer } = model;
  const reading = task.template ? readTurns(model, task.template, [String(input)]) : readInput(model, input);
  if (task.generates) {
    const ids = await write(model, reading);
    const output = task.reads === "restore" ? fillIn(model, reading.ids.source, ids) : writer.decode(ids);
    return { output, ids };
  }
  if (task.reads === "span") return { output: await findAnswer(model, String(input)), ids: [] };
  if (task.reads === "tag") return { output: await tagWords(model, String(input)), ids: [] };
  const run = new Run(program, reading);
  await run.advance();
  if (task.reads === "embed") return { output: writeVector(task, run.row("vector", 0)), ids: [] };
  if (task.reads === "fill") return { output: fillBlanks(model, run), ids: [] };
  if (task.reads === "replaced") {
    if (reading.unread) checkLength(reading.unread + task.context, task);
    return { output: findReplaced(model, run), ids: [] };
  }
  const logits = run.row("logits", 0);
  const best = argmax(logits);
  const [low, high] = task.bounds ?? [0, 1];
  const output = task.labels ? task.labels[best] : (low + logits[0] * (high - low)).toFixed(4);
  return { output, ids: [best] };
}
