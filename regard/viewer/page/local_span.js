/* How a saved model finds answers in a text: in parts that overlap, by their first and their last token. */

import { logPlaces } from "./local_ops.js";
import { Run } from "./local_run.js";

/** @typedef {import("./local_tasks.js").Model} Model */
/** [CLS] question [SEP] a part of the text [SEP]; `may`: where an answer may begin or end, [CLS] for none.
 * @typedef {{ ids: number[], second: number, may: boolean[], places: [from: number, to: number][] }} Part */

/** @param {string} input */
function splitQuestion(input) {
  const at = input.indexOf("\t");
  const [question, text] = at < 0 ? [input, ""] : [input.slice(0, at), input.slice(at + 1)];
  if (!question.trim() || !text.trim()) {
    throw new Error("give a question and the text to find the answer in, with a tab between");
  }
  return { question, text };
}

/**
 * A question, which may take half of the context, with each part of its text.
 * @type {(model: Model, input: string) => { text: string, parts: Part[], unread: number }}
 */
export function readQuestion({ task, reader }, input) {
  const { question, text } = splitQuestion(input);
  const { first: [first] = [0], end, room = 2, separators = 1 } = task;
  const all = reader.encode(question);
  const about = all.slice(0, Math.floor(room / 2));
  const between = new Array(separators).fill(end ?? 0);
  const { ids, places } = reader.encodePlaces(text);
  const [width, second] = [room - about.length, 1 + about.length + separators];
  const hop = Math.max(1, Math.floor(width / 2));
  const parts = [];
  for (let i = 0; i < Math.max(1, ids.length - width + hop); i += hop) {
    const part = places.slice(i, i + width);
    parts.push({
      ids: [first, ...about, ...between, ...ids.slice(i, i + width), end ?? 0], second, places: part,
      may: [true, ...new Array(second - 1).fill(false), ...part.map(([from, to]) => from < to), false],
    });
  }
  return { text, parts, unread: all.length - about.length };
}

/** The likeliest answer of a part.
 * @type {(starts: number[], ends: number[], part: Part, longest: number) =>
 *   { place: [from: number, to: number], p: number } | null} */
function likeliest(starts, ends, { second, may, places }, longest) {
  if (!may.slice(1).some(Boolean)) return null;
  let [best, from, to] = [-Infinity, 0, 0];
  for (let i = 0; i < places.length; i++) {
    for (let j = i; j < Math.min(places.length, i + longest); j++) {
      const sum = starts[second + i] + ends[second + j];
      if (sum > best) [best, from, to] = [sum, i, j];
    }
  }
  return { place: [places[from][0], places[to][1]], p: Math.exp(best) };
}

/**
 * The likeliest answer, as it is written in the text.
 * @type {(model: Model, input: string) => Promise<string>}
 */
export async function findAnswer(model, input) {
  const { text, parts } = readQuestion(model, input);
  let [answer, best, nothing] = ["", -Infinity, 1];
  for (const part of parts) {
    const run = new Run(model.program, { ...part, ids: { text: part.ids } });
    await run.advance();
    const [starts, ends] = [0, 1].map((column) => logPlaces(run, "logits", column));
    nothing = Math.min(nothing, Math.exp(starts[0] + ends[0]));
    const one = likeliest(starts, ends, part, model.task.longest ?? 30);
    if (one && one.p > best) [answer, best] = [text.slice(...one.place), one.p];
  }
  return model.task.unanswerable && nothing > best ? "" : answer;
}
