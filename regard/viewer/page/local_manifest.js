/* The manifest of a run that a saved model made here, in the form that a server sends. */

import { argmax } from "./local_tasks.js";
import { last } from "./dom.js";
import { chooseOpening, evenBits, findPatterns, headKinds, nameHeads } from "./local_heads.js";

/** @typedef {import("./local_run.js").Run} Run */
/** @typedef {import("./local_tasks.js").Model} Model */
/** @typedef {Pick<Manifest, "tokens" | "ids">} Sides */
/** A run, with what it was made of.
 * @typedef {{ run: Run, reading: Reading, written: number[] | null, unread: number, input: string | null,
 *   exact: boolean }} Made */

/** @type {(run: Run, name: string) => number[]} */
export function shapeOf(run, name) {
  if (run.image(name)) return run.image(name).shape;
  const { heads, dims } = /** @type {ProgramStep} */ (run.program.byName.get(name));
  const rows = run.count(name);
  const width = run.row(name, 0).length / heads;
  return dims === 1 ? [width] : dims === 2 ? [rows, width] : [heads, rows, width];
}

/** @type {(run: Run, attention: AttentionInfo) => import("./local_heads.js").Weights} */
function weightsOf(run, { name }) {
  const [heads, queries, keys] = shapeOf(run, `${name}.weights`);
  return {
    heads, queries, keys,
    row: (h, t) => run.row(`${name}.weights`, t).subarray(h * keys, (h + 1) * keys),
    allowed: (t, j) => run.row(`${name}.reason`, t)[j] === 0,
  };
}

/** @type {(run: Run, attention: AttentionInfo, sides: Sides, grid: [number, number] | null) =>
 *   AttentionInfo} */
function describeAttention(run, attention, { tokens, ids }, grid) {
  const { name, rows, columns } = attention;
  const idsOf = (/** @type {string} */ side) =>
    (ids[side]?.length === tokens[side].length ? ids[side] : [...tokens[side].keys()]);
  let masked = false;
  for (let t = 0; t < run.count(`${name}.reason`) && !masked; t++) {
    masked = run.row(`${name}.reason`, t).some((reason) => reason > 0);
  }
  const weights = weightsOf(run, attention);
  const queries = idsOf(rows);
  const cells = ids[rows] && ids[columns] ? null : grid; // words that look at words have none
  const patterns = findPatterns(weights, [queries, rows === columns ? queries : idsOf(columns)], cells);
  return {
    ...attention, masked, patterns, kinds: headKinds(weights, rows === columns),
    bits: evenBits(weights), roles: nameHeads(patterns, weights.heads),
  };
}

/** @type {(run: Run, box: GraphBox) => GraphBox} */
function describeBox(run, box) {
  const part = box.name.slice(0, box.name.lastIndexOf("."));
  const known = (/** @type {string} */ name) => run.program.byName.has(name);
  const inside = known(`${part}.weights`) || known(`${part}.hidden`);
  const names = inside && box.group !== undefined && box.title !== "Norm"
    ? [`${part}.residual`, `${part}.heads`, box.name] : [box.name];
  const shape = shapeOf(run, names.find(known) ?? box.name);
  return { ...box, shape: names.length > 1 ? shape.slice(-2) : shape };
}

/** The answer of a run: what was written, or the likeliest class.
 * @type {(model: Model, made: Made) => string | null} */
function answerOf({ task, writer }, { run, written }) {
  if (written) return writer.decode(last(written) === task.end ? written.slice(0, -1) : written);
  if (!task.labels || run.program.byName.get("probabilities")?.dims !== 1) return null;
  const p = run.row("probabilities", 0);
  return `${task.labels[argmax(p)]} ${Math.round(100 * p[argmax(p)])}%`;
}

/** Tokens for people: one that completes the bytes of a character is shown as that character.
 * @param {string[]} tokens */
function spellBytes(tokens) {
  let decoder = new TextDecoder();
  return tokens.map((token) => {
    const bytes = /^(?:<0x[0-9A-F]{2}>)+$/.test(token) ? token.match(/[0-9A-F]{2}(?=>)/g) ?? [] : [];
    if (!bytes.length) decoder = new TextDecoder();
    const text = decoder.decode(Uint8Array.from(bytes, (byte) => parseInt(byte, 16)), { stream: true });
    return text && !text.includes("\ufffd") ? text : token;
  });
}

const SPECIAL = /^(?:<(?!0x)[^>]+>|\[[^\]]+\])$/; // such as <s> and [CLS]
const WORD_MARKS = ["▁", "Ġ", "Ċ", " ", "\n"]; // what a token begins with that begins a word

/** Which word each token belongs to; null if all are words, or nothing says where words begin.
 * @param {string[]} pieces
 * @returns {number[] | null} */
function numberWords(pieces) {
  const isPiece = pieces.some((piece) => piece.startsWith("##"));
  const marked = pieces.map((piece) => WORD_MARKS.some((mark) => piece.startsWith(mark)));
  if (!isPiece && !marked.includes(true)) return null;
  let word = -1;
  const numbers = pieces.map((piece, i) => {
    const alone = SPECIAL.test(piece) || (i > 0 && SPECIAL.test(pieces[i - 1]));
    const begins = isPiece ? !piece.startsWith("##") : marked[i] || alone;
    if (begins || i === 0) word += 1;
    return word;
  });
  return word + 1 < pieces.length ? numbers : null;
}

/** The words of the sides that have sub-words.
 * @type {(model: Model, ids: Manifest["ids"]) => Record<string, number[]>} */
const wordsOf = ({ reader, writer }, ids) => Object.fromEntries(Object.entries(ids).flatMap(([side, row]) => {
  const { tokens } = (side === "source" || side === "text" ? reader : writer).saved;
  const numbers = numberWords(row.map((id) => tokens[id] ?? ""));
  return numbers ? [[side, numbers]] : [];
}));

/** The tokens of each side.
 * @type {(model: Model, template: Manifest, made: Made) => Sides} */
function tokensOf({ task, reader, writer }, template, { run, written }) {
  /** @type {Manifest["tokens"]} */
  const tokens = {};
  /** @type {Manifest["ids"]} */
  const ids = {};
  for (const side of Object.keys(template.tokens)) {
    const row = side === "written" ? written : run.ids[side];
    const tokenizer = side === "source" || side === "text" ? reader : writer;
    if (row) [ids[side], tokens[side]] = [row, spellBytes(tokenizer.words(row))];
    else tokens[side] = (side === "text" && task.regions?.slice(0, run.counts.text)) || template.tokens[side];
  }
  return { tokens: task.labels ? { ...tokens, label: task.labels } : tokens, ids };
}

/**
 * The manifest of a run, from that of the run that the file was saved with.
 * @type {(model: Model, template: Manifest, made: Made, id: string) => Manifest}
 */
export function describeRun(model, template, made, id) {
  const { run } = made;
  const names = run.program.names;
  const sides = tokensOf(model, template, made);
  /** @type {[number, number] | null} */
  const grid = model.task.frames ? [1, run.counts.columns] : template.grid;
  const attentions = Object.fromEntries(Object.entries(template.attentions).map(([part, all]) =>
    [part, all.map((one) => describeAttention(run, one, sides, grid))]));
  return {
    ...template,
    ...sides,
    grid,
    words: wordsOf(model, sides.ids),
    id,
    input: made.input,
    exact: made.exact,
    unread: made.unread,
    answer: answerOf(model, made),
    difference: null,
    tensors: Object.fromEntries(Object.entries(template.tensors).filter(([name]) => names.includes(name))
      .map(([name, info]) => [name, { ...info, shape: shapeOf(run, name) }])),
    attentions,
    opening: chooseOpening(attentions),
    graph: template.graph.map(({ title, boxes }) => ({
      title, boxes: boxes.filter(({ name }) => names.includes(name)).map((box) => describeBox(run, box)),
    })),
  };
}
