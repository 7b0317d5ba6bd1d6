/* What a saved model reads of an input, and how its answer is written: greedily, token by token. */

import { Run } from "./local_run.js";

const BLANK = /_{2,}|\[MASK\]|<extra_id_\d+>/;
const BEST = 5; // words that are shown for a blank

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

/** What an encoder reads of a text, by task.
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
    const ids = lines.flatMap((line, i) => [...(i ? between : []), ...reader.encode(line.trim())]);
    return ids.slice(-(task.context - 1));
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

/** What a model without an encoder reads of a text, by task.
 * @type {Record<string, (model: Model, text: string) => Reading>} */
const TEXTS = {
  write({ task, reader }, text) {
    const ids = [...(task.first ?? []), ...reader.encode(text)];
    return { ids: { text: fitContext(ids.length ? ids : task.blank ?? [0], task.context) } };
  },
  fill({ task, reader }, text) {
    const [first] = task.first ?? [0];
    const end = task.end ?? 0;
    const inside = encodeBlanks(reader, text, () => task.mask ?? 0, true);
    if (!BLANK.test(text)) return { ids: { text: [first, ...inside.slice(0, task.context - 2), end] } };
    checkLength(inside.length + 2, task);
    return { ids: { text: [first, ...inside, end] } };
  },
  classify({ task, reader }, text) {
    const [a, b] = text.split("\t").slice(0, 2).map((part) => reader.encode(part));
    const [first, end] = [task.first ?? [], task.end === null ? [] : [task.end ?? 0]];
    const room = task.context - first.length - end.length * (b ? 2 : 1);
    const half = b ? Math.max(Math.floor(room / 2), room - b.length) : room;
    const one = a.slice(0, Math.max(1, Math.min(half, room)));
    const ids = [...first, ...one, ...end];
    if (!b) return { ids: { text: ids } };
    const other = b.slice(0, Math.max(0, room - one.length));
    return { ids: { text: [...ids, ...other, ...end] }, second: ids.length };
  },
};

/**
 * What the model reads of an input. `written` are the ids of an answer, if it is given.
 * @type {(model: Model, input: string | Tensor, answer?: string) => Reading & { written?: number[] }}
 */
export function readInput(model, input, answer) {
  const { task } = model;
  if (typeof input !== "string") {
    const { counts = {} } = task;
    if (!task.writes) return { ids: {}, counts, pixels: input };
    const written = encodeTarget(model, answer);
    return { ids: { target: [task.begin ?? 0] }, counts, pixels: input, written };
  }
  if (!input.trim()) throw new Error("there is nothing to read; type a text");
  if (!task.writes) return TEXTS[task.reads](model, input);
  const source = [...SOURCES[task.reads](model, input), task.source_end ?? 0];
  return { ids: { source, target: [task.begin ?? 0] }, written: encodeTarget(model, answer, source) };
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
const pause = () => new Promise((resolve) => {
  setTimeout(resolve, 0);
});

/**
 * The tokens that the model writes, without the end: always the likeliest one.
 * @type {(model: Model, reading: Reading, edits?: Edits, onToken?: (ids: number[]) => void) =>
 *   Promise<number[]>}
 */
export async function write({ program, task }, reading, edits, onToken) {
  const side = "target" in reading.ids ? "target" : "text";
  const [text, written, ends] = [[...reading.ids[side]], /** @type {number[]} */ ([]), task.ends];
  const most = side === "target" ? Math.min(task.most, 1 + task.context - text.length) : task.most;
  /** @type {Run | null} */
  let run = null;
  let shown = performance.now();
  while (written.length < most) {
    if (run && run.ids[side].length < task.context) run.ids[side].push(text[text.length - 1]);
    else {
      const ids = { ...reading.ids, [side]: fitContext(text, task.context) };
      run = new Run(program, { ...reading, ids }, edits);
    }
    run.advance({ brief: true });
    const token = argmax(run.logits);
    if (ends.includes(token)) break;
    text.push(token);
    written.push(token);
    if (performance.now() - shown > 30) {
      onToken?.(written);
      await pause();
      shown = performance.now();
    }
  }
  return written;
}

/**
 * The run that the page looks into: on a given answer, or the model's own.
 * @type {(model: Model, reading: Reading & { written?: number[] }, edits?: Edits) =>
 *   Promise<{ run: Run, written: number[] | null }>}
 */
export async function trace(model, reading, edits) {
  const { task, program } = model;
  let written = null;
  let { ids } = reading;
  if (task.writes) {
    written = reading.written ?? [...await write(model, reading), task.end ?? 0];
    written = written.slice(0, task.context);
    ids = { ...ids, target: [...ids.target, ...written.slice(0, -1)] };
  }
  const run = new Run(program, { ...reading, ids }, edits);
  run.advance();
  return { run, written };
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

/**
 * The model's answer.
 * @type {(model: Model, input: string | Tensor, onText?: (text: string) => void) =>
 *   Promise<{ output: string, ids: number[] }>}
 */
export async function answer(model, input, onText) {
  const { task, program, writer } = model;
  const reading = readInput(model, input);
  if (task.generates) {
    const ids = await write(model, reading, undefined, onText && ((some) => onText(writer.decode(some))));
    const output = task.reads === "restore" ? fillIn(model, reading.ids.source, ids) : writer.decode(ids);
    return { output, ids };
  }
  const run = new Run(program, reading);
  run.advance();
  if (task.reads === "fill") return { output: fillBlanks(model, run), ids: [] };
  const logits = run.row("logits", 0);
  const best = argmax(logits);
  const [low, high] = task.bounds ?? [0, 1];
  const output = task.labels ? task.labels[best] : (low + logits[0] * (high - low)).toFixed(4);
  return { output, ids: [best] };
}
