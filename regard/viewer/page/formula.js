/* The steps of a forward pass: the title of each, what it does, and its formula in MathML. */

import { last, m } from "./dom.js";

/** @typedef {() => Element} WriteFormula */

/** @param {string} word */
const i = (word) => m("mi", {}, word);
/** @param {string} sign */
const o = (sign) => m("mo", {}, sign);
/** @param {number} number */
const n = (number) => m("mn", {}, number);
/** @param {Element[]} parts */
const row = (...parts) => m("mrow", {}, parts);
/** @type {(a: Element, b: Element) => Element} */
const sub = (a, b) => m("msub", {}, a, b);
/** @type {(a: Element, b: Element) => Element} */
const sup = (a, b) => m("msup", {}, a, b);
/** @type {(a: Element, b: Element) => Element} */
const frac = (a, b) => m("mfrac", {}, a, b);
/** @param {Element} a */
const root = (a) => m("msqrt", {}, a);
/** @type {(f: string, ...x: Element[]) => Element} */
const of = (f, ...x) => row(i(f), o("("), ...x, o(")"));
/** @param {string} words */
const text = (words) => m("mtext", {}, words);
/** @param {string} name */
const W = (name) => sub(i("W"), i(name));
const keysTransposed = () => sup(i("K"), i("⊤"));
const scaledScores = () => frac(row(i("Q"), keysTransposed()), root(i("d")));
/** @type {(f: string) => Element} */
const rotaryAngle = (f) => of(f, i("t"), sub(i("θ"), i("i")));

/** @param {Element[]} parts */
const formula = (...parts) => m("math", { displaystyle: "true" }, row(...parts));

/** @type {WriteFormula} */
const layerNorm = () => formula(frac(row(i("x"), o("−"), i("μ")), i("σ")), o("⊙"), i("γ"), o("+"), i("β"));
/** @type {WriteFormula} */
const rmsNorm = () => formula(frac(i("x"), i("rms")), o("⊙"), i("γ"));
/** @type {WriteFormula} */
const additiveScore = () => formula(sup(i("w"), i("⊤")), of("tanh", i("W"), i("s"), o("+"), i("U"), i("h")));
/** @type {WriteFormula} */
const linearMap = () => formula(i("W"), i("x"));
/** @type {WriteFormula} */
const recurrentState = () => formula(sub(i("h"), i("t")), o("="),
  of("f", sub(i("h"), row(i("t"), o("−"), n(1))), o(","), sub(i("x"), i("t"))));
/** @type {WriteFormula} */
const softmaxShare = () => formula(sub(i("p"), i("i")), o("="), frac(sup(i("e"), sub(i("z"), i("i"))),
  row(m("munder", {}, o("∑"), i("j")), sup(i("e"), sub(i("z"), i("j"))))));
/** @type {WriteFormula} */
const joinedHeads = () =>
  formula(o("["), sub(i("head"), n(1)), o(";"), o("…"), o(";"), sub(i("head"), i("H")), o("]"));

/**
 * By the last part of a tensor's name: its title, what it is, and its formula. A model's own description of a
 * tensor goes before these.
 * @type {Record<string, [title: string, about: string, write: WriteFormula | null]>}
 */
const STEPS = {
  pixels: ["Picture", "The picture as the model sees it, channel by channel.", null],
  patches: ["Patches", "The picture cut into patches; each row holds the pixels of one patch.", null],
  embed: ["Embedding", "Each token becomes a vector: its row of the embedding matrix.",
    () => formula(i("x"), o("="), i("E"), o("["), text("token"), o("]"))],
  segments: ["Segments", "Which of the texts a token belongs to, as a vector.", null],
  positions: ["Positions", "A vector for each position, because attention by itself ignores the order.",
    () => formula(i("p"), o("="), i("P"), o("["), text("position"), o("]"))],
  sum: ["Embedding + positions", "What a token is and where it stands, in one vector.",
    () => formula(i("x"), o("+"), i("p"))],
  embed_norm: ["Norm of the embeddings", "Each vector is normalised to mean 0 and deviation 1, then scaled.",
    layerNorm],
  cos: ["Rotary angles, cosine", "The angles by which queries and keys are rotated at each position.",
    () => formula(rotaryAngle("cos"))],
  sin: ["Rotary angles, sine", "The sine of the same angles.", () => formula(rotaryAngle("sin"))],
  bias: ["Position bias", "What the distance between two tokens adds to their score.", null],
  input: ["Input of the first block", "What the first block reads.", null],
  norm: ["Norm", "Each vector is normalised, then scaled by learned numbers.", layerNorm],
  Wq: ["Queries before the rotation", "What each token looks for.", () => formula(i("x"), W("Q"))],
  Wk: ["Keys before the rotation", "What each token offers.", () => formula(i("x"), W("K"))],
  q: ["Queries Q", "What each token looks for; each head has a part of the vector.",
    () => formula(i("Q"), o("="), i("X"), W("Q"))],
  k: ["Keys K", "What each token is found by.", () => formula(i("K"), o("="), i("X"), W("K"))],
  v: ["Values V", "What each token passes on when it is attended to.",
    () => formula(i("V"), o("="), i("X"), W("V"))],
  scores: ["Scores", "Each query is compared with each key: the larger the score, the better they match.",
    () => formula(i("S"), o("="), i("Q"), keysTransposed())],
  scaled: ["Scaled", "Divided by the root of the width, so that wide heads don't saturate the softmax.",
    () => formula(scaledScores())],
  mask: ["Mask", "1 where a token may attend, 0 where it may not.", null],
  weights: ["Weights: softmax", "The scores of each row become weights that sum to 1.",
    () => formula(i("A"), o("="), of("softmax", scaledScores()))],
  heads: ["Weighted values", "The output of each head: the values, averaged with the weights.",
    () => formula(sub(i("head"), i("h")), o("="), i("A"), i("V"))],
  joined: ["Heads joined", "The outputs of the heads side by side.", joinedHeads],
  out: ["Output", "The heads mixed into one vector.", () => formula(o("["), i("heads"), o("]"), W("O"))],
  residual: ["Residual", "Added to its input, so that this part only learns what to change.",
    () => formula(i("x"), o("+"), of("f", i("x")))],
  gate: ["Gate", "How much of each hidden number passes.", () => formula(W("gate"), i("x"))],
  up: ["Feed-forward, up", "Each token by itself, projected into a wider space.",
    () => formula(sub(i("W"), n(1)), i("x"))],
  hidden: ["Activation", "Numbers below zero become zero, or almost zero.",
    () => formula(of("f", sub(i("W"), n(1)), i("x")))],
  down: ["Feed-forward, down", "Projected back to the width of the model.",
    () => formula(sub(i("W"), n(2)), of("f", sub(i("W"), n(1)), i("x")))],
  states: ["States", "The state of a recurrent cell after each token.", recurrentState],
  readout: ["Readout", "State, token and context, mixed.",
    () => formula(i("W"), o("["), i("s"), o(";"), i("y"), o(";"), i("c"), o("]"))],
  output: ["Output", "The output of this part.", null],
  project: ["Projection", "Projected to the width of the decoder.", linearMap],
  transform: ["Transform", "One more layer before the tokens are predicted.", linearMap],
  transform_norm: ["Norm of the transform", "Activated, then normalised.", layerNorm],
  pooler: ["Pooler", "The vector of the first token, through one more layer.",
    () => formula(i("W"), sub(i("x"), n(0)))],
  pooled: ["Pooled", "One vector for the whole input.", null],
  logits: ["Logits", "A score for every token or class: the last vector, compared with each.",
    () => formula(i("z"), o("="), i("h"), sup(i("E"), i("⊤")))],
  probabilities: ["Probabilities", "Softmax: the scores become probabilities that sum to 1.", softmaxShare],
  vector: ["Vector", "One vector for the whole text.", null],
  rollout: ["Rollout", "What reaches each token through all layers: the mean over the heads of each layer, "
    + "with the residual connection, multiplied.",
  () => formula(m("munder", {}, o("∏"), i("l")), frac(row(i("A"), o("+"), i("I")), n(2)))],
};

/**
 * The formula of a tensor that is computed in another way than its name suggests.
 * @param {string} what the last part of its name
 * @param {Sum | undefined} sum
 * @returns {WriteFormula | undefined}
 */
function otherFormula(what, sum) {
  if (sum?.does === "additive") return additiveScore;
  if (sum?.does === "norm" && sum.rms) return rmsNorm;
  if (sum?.does === "turn") return () => formula(of("R", i("t")), i("W"), i("x"));
  if (what === "weights" && sum?.does === "softmax" && sum.x.endsWith(".scores")) {
    return () => formula(i("A"), o("="), of("softmax", i("S")));
  }
  return undefined;
}

/**
 * The title of a tensor, what it is, and its formula: as the model describes it, or by its name.
 * @param {string} name
 * @param {Sum | undefined} sum
 */
export function describeStep(name, sum) {
  const what = last(name.split("."));
  const [title, about, write] = STEPS[what] ?? [name, "The output of this layer.", null];
  const rotated = sum?.does === "turn" ? " Rotated by an angle that grows with the position." : "";
  const drawn = (otherFormula(what, sum) ?? write)?.() ?? null;
  return {
    title: sum?.title ?? title,
    about: sum?.about ?? about + rotated,
    formula: sum?.formula ? formula(text(sum.formula)) : drawn,
  };
}
