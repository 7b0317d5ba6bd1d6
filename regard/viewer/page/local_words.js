/* How a saved model that tags words reads a text: word by word, in parts that fit its context. */

/** @typedef {import("./local_tasks.js").Model} Model */
/** Ids, and where each word in them begins.
 * @typedef {{ ids: number[], begins: number[] }} Window */

const INNER = "-'’.,"; // part of a word between its letters or digits: Ruiz-Hart, don't, 3.5
const SPACES = /^[\p{White_Space}\x1c-\x1f]$/u;
const LETTERS = /^[_\p{L}\p{M}\p{N}\p{C}]$/u;
const SPACE_TOKENS = [" ", "Ġ", "▁"]; // a space that is a token of its own

/** The words of a text, split at white space and punctuation; every other mark is a word of its own.
 * @param {string} text */
export function splitWords(text) {
  const letters = Array.from(text);
  const kinds = letters.map((c) =>
    (SPACES.test(c) ? " " : INNER.includes(c) ? "-" : LETTERS.test(c) ? "w" : ".")).join("");
  return [...kinds.matchAll(/w+(?:-w+)*|[^ ]/g)].map(({ index, 0: { length } }) =>
    letters.slice(index, index + length).join(""));
}

/** The ids of a word, no more than there is room for, and the first of them that is no space.
 * @type {(model: Model, word: string) => [ids: number[], begin: number]} */
function wordIds({ task, reader }, word) {
  const { room = 1, unknown = 0 } = task;
  const ids = reader.encode(word);
  const found = ids.findIndex((id) => !SPACE_TOKENS.includes(reader.saved.tokens[id] ?? ""));
  const begin = found < 0 ? ids.length : found;
  if (found < 0) ids.push(unknown); // nothing of the word is left
  return ids.length > room ? [ids.slice(begin, begin + room), 0] : [ids, begin];
}

/**
 * The parts of a text that follow each other: each word is in one of them.
 * @type {(model: Model, words: string[]) => Window[]}
 */
export function readWindows(model, words) {
  const { before = [], after = [], room = 1 } = model.task;
  /** @type {Window[]} */
  const windows = [];
  words.forEach((word, i) => {
    const [ids, begin] = wordIds(model, i ? ` ${word}` : word);
    let last = windows[windows.length - 1];
    if (!last || last.ids.length + ids.length > before.length + room) {
      last = { ids: [...before], begins: [] };
      windows.push(last);
    }
    last.begins.push(last.ids.length + begin);
    last.ids.push(...ids);
  });
  for (const { ids } of windows) ids.push(...after);
  return windows;
}
