/* The manifest of a run that a saved model made here, in the form that a server sends. */

import { argmax } from "./local_tasks.js";
import { last } from "./dom.js";

/** @typedef {import("./local_run.js").Run} Run */
/** @typedef {import("./local_tasks.js").Model} Model */
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

/** What each head does: entropy in bits, the weight on the first token, and where queries and keys are the
 * same tokens, on the token itself and the one before.
 * @type {(run: Run, attention: AttentionInfo) => HeadKinds[]} */
function headKinds(run, { name, rows, columns }) {
  const [heads, queries, keys] = shapeOf(run, `${name}.weights`);
  return Array.from({ length: heads }, (_, h) => {
    let [entropy, diagonal, previous, first] = [0, 0, 0, 0];
    for (let t = 0; t < queries; t++) {
      const row = run.row(`${name}.weights`, t).subarray(h * keys, (h + 1) * keys);
      for (const p of row) entropy -= p > 0 ? p * Math.log2(p) : 0;
      if (t < keys) diagonal += row[t];
      if (t > 0 && t <= keys) previous += row[t - 1];
      first += row[0];
    }
    const kinds = { entropy: entropy / queries, first: first / queries };
    if (rows !== columns) return kinds;
    return { ...kinds, diagonal: diagonal / queries, previous: previous / Math.max(1, queries - 1) };
  });
}

/** @type {(run: Run, attention: AttentionInfo) => AttentionInfo} */
function describeAttention(run, attention) {
  const { name } = attention;
  let masked = false;
  for (let t = 0; t < run.count(`${name}.reason`) && !masked; t++) {
    masked = run.row(`${name}.reason`, t).some((reason) => reason > 0);
  }
  // Which pattern a head follows is known only for the input that the file was saved with.
  return { ...attention, masked, kinds: headKinds(run, attention), patterns: {}, roles: [] };
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
  if (!task.labels || !run.program.byName.has("probabilities")) return null;
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

/** The tokens of each side.
 * @type {(model: Model, template: Manifest, made: Made) => Pick<Manifest, "tokens" | "ids">} */
function tokensOf({ task, reader, writer }, template, { run, written }) {
  /** @type {Manifest["tokens"]} */
  const tokens = {};
  /** @type {Manifest["ids"]} */
  const ids = {};
  for (const side of Object.keys(template.tokens)) {
    const row = side === "written" ? written : run.ids[side];
    const tokenizer = side === "source" || side === "text" ? reader : writer;
    if (row) [ids[side], tokens[side]] = [row, spellBytes(tokenizer.words(row))];
    else tokens[side] = template.tokens[side];
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
  return {
    ...template,
    ...tokensOf(model, template, made),
    id,
    input: made.input,
    exact: made.exact,
    unread: made.unread,
    answer: answerOf(model, made),
    difference: null,
    tensors: Object.fromEntries(Object.entries(template.tensors).filter(([name]) => names.includes(name))
      .map(([name, info]) => [name, { ...info, shape: shapeOf(run, name) }])),
    attentions: Object.fromEntries(Object.entries(template.attentions)
      .map(([part, all]) => [part, all.map((one) => describeAttention(run, one))])),
    graph: template.graph.map(({ title, boxes }) => ({
      title, boxes: boxes.filter(({ name }) => names.includes(name)).map((box) => describeBox(run, box)),
    })),
  };
}
