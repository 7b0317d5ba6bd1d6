/* The steps of a forward pass: what each is called, what it does, and its formula in MathML. */

import { m } from "./dom.js";

const i = (word) => m("mi", {}, word);
const o = (sign) => m("mo", {}, sign);
const n = (number) => m("mn", {}, number);
const row = (...parts) => m("mrow", {}, parts);
const sub = (a, b) => m("msub", {}, a, b);
const sup = (a, b) => m("msup", {}, a, b);
const frac = (a, b) => m("mfrac", {}, a, b);
const root = (a) => m("msqrt", {}, a);
const of = (f, ...x) => row(i(f), o("("), ...x, o(")"));
const text = (words) => m("mtext", {}, words);
const sum = (under) => m("munder", {}, o("∑"), under);
const W = (name) => sub(i("W"), i(name));
const kT = () => sup(i("K"), i("⊤"));

export const formula = (...parts) => m("math", { displaystyle: "true" }, row(...parts));

/** By the last part of a name: title, what happens, formula. */
const STEPS = {
  pixels: ["Picture", "The picture as the model sees it, channel by channel.", null],
  patches: ["Patches", "The picture cut into patches; each is a row of all its pixels.", null],
  embed: ["Embedding", "Each token becomes a vector: its row in the table of embeddings.", () => formula(i("x"), o("="), i("E"), o("["), text("token"), o("]"))],
  segments: ["Segments", "Which of the texts a token is part of, as a vector.", null],
  positions: ["Positions", "A vector for each place, for attention alone sees no order.", () => formula(i("p"), o("="), i("P"), o("["), text("position"), o("]"))],
  sum: ["Embedding + positions", "What a token is, and where it stands, in one vector.", () => formula(i("x"), o("+"), i("p"))],
  embed_norm: ["Norm of the embeddings", "Every vector brought to mean 0 and deviation 1, then scaled.", () => norm()],
  cos: ["Rotary angles, cosine", "By which angles queries and keys are turned at each place.", () => formula(i("cos"), o("("), i("t"), sub(i("θ"), i("i")), o(")"))],
  sin: ["Rotary angles, sine", "The same angles' sine.", () => formula(i("sin"), o("("), i("t"), sub(i("θ"), i("i")), o(")"))],
  bias: ["Position bias", "What the distance of two tokens adds to their score.", null],
  input: ["Into the first block", "What the first block reads.", null],
  norm: ["Norm", "Every vector brought to one size, then scaled by learned numbers.", () => norm()],
  Wq: ["Queries before turning", "What each token asks for.", () => formula(i("x"), W("Q"))],
  Wk: ["Keys before turning", "What each token offers.", () => formula(i("x"), W("K"))],
  q: ["Queries Q", "What each token asks for, a part of the vector for each head.", () => formula(i("Q"), o("="), i("X"), W("Q"))],
  k: ["Keys K", "What each token offers to be found by.", () => formula(i("K"), o("="), i("X"), W("K"))],
  v: ["Values V", "What each token gives when it is looked at.", () => formula(i("V"), o("="), i("X"), W("V"))],
  scores: ["Scores", "Each query compared with each key: the larger, the better they match.", () => formula(i("S"), o("="), i("Q"), kT())],
  scaled: ["Scaled", "Divided by the root of the width, so that long vectors don't make softmax extreme.", () => formula(frac(row(i("Q"), kT()), root(i("d"))))],
  mask: ["Mask", "Where a token may look: 1; where it may not: 0.", null],
  weights: ["Weights: softmax", "Scores become shares that sum to 1 in each row.", () => formula(i("A"), o("="), of("softmax", frac(row(i("Q"), kT()), root(i("d")))))],
  heads: ["Weighted values", "Each head's answer: the values, averaged by the weights.", () => formula(sub(i("head"), i("h")), o("="), i("A"), i("V"))],
  joined: ["Heads joined", "The heads' answers side by side.", () => formula(o("["), sub(i("head"), n(1)), o(";"), o("…"), o(";"), sub(i("head"), i("H")), o("]"))],
  out: ["Output", "What the heads found, mixed into one vector.", () => formula(o("["), i("heads"), o("]"), W("O"))],
  residual: ["Residual", "Added to what came in: the part only has to learn what to change.", () => formula(i("x"), o("+"), of("f", i("x")))],
  gate: ["Gate", "How far each hidden number is let through.", () => formula(W("gate"), i("x"))],
  up: ["Feed-forward, up", "Each token on its own, into a wider space.", () => formula(sub(i("W"), n(1)), i("x"))],
  hidden: ["Activation", "Only part of the hidden numbers speak: what is below zero falls silent, or nearly so.", () => formula(of("f", sub(i("W"), n(1)), i("x")))],
  down: ["Feed-forward, down", "And back to the width of the model.", () => formula(sub(i("W"), n(2)), of("f", sub(i("W"), n(1)), i("x")))],
  states: ["States", "What a recurrent cell has kept after each token.", () => formula(sub(i("h"), i("t")), o("="), of("f", sub(i("h"), row(i("t"), o("−"), n(1))), o(","), sub(i("x"), i("t"))))],
  readout: ["Readout", "State, word and context, mixed.", () => formula(i("W"), o("["), i("s"), o(";"), i("y"), o(";"), i("c"), o("]"))],
  output: ["Output", "What leaves this part.", null],
  project: ["Projection", "To the width of the decoder.", () => formula(i("W"), i("x"))],
  transform: ["Transform", "One more layer before words are told.", () => formula(i("W"), i("x"))],
  transform_norm: ["Norm of the transform", "Activated, then brought to one size.", () => norm()],
  pooler: ["Pooler", "The first token's vector, through one more layer.", () => formula(i("W"), sub(i("x"), n(0)))],
  pooled: ["Pooled", "One vector for the whole input.", null],
  logits: ["Logits", "A score for every word, or class: the last vector compared with each.", () => formula(i("z"), o("="), i("h"), sup(i("E"), i("⊤")))],
  probabilities: ["Probabilities", "Softmax: all scores as shares that sum to 1.", () => formula(sub(i("p"), i("i")), o("="), frac(sup(i("e"), sub(i("z"), i("i"))), row(sum(i("j")), sup(i("e"), sub(i("z"), i("j"))))))],
  vector: ["Vector", "What the text comes to.", null],
  rollout: ["Rollout", "What reached each token through all layers and past them: the mean of heads, with the residual, multiplied up.", () => formula(m("munder", {}, o("∏"), i("l")), frac(row(i("A"), o("+"), i("I")), n(2)))],
};

function norm() {
  return formula(frac(row(i("x"), o("−"), i("μ")), i("σ")), o("⊙"), i("γ"), o("+"), i("β"));
}

const ADDITIVE = () => formula(sup(i("w"), i("⊤")), of("tanh", i("W"), i("s"), o("+"), i("U"), i("h")));

/** {title, does, formula} of a tensor. */
export function step(name, made) {
  const what = name.split(".").at(-1);
  let [title, does, write] = STEPS[what] ?? [name, "What this layer gives.", null];
  if (made?.does === "additive") write = ADDITIVE;
  if (made?.does === "norm" && made.rms) write = () => formula(frac(i("x"), i("rms")), o("⊙"), i("γ"));
  if (made?.does === "turn") {
    write = () => formula(i("R"), o("("), i("t"), o(")"), i("W"), i("x"));
    does += " Turned by an angle that grows with the place.";
  }
  if (what === "weights" && made?.x?.endsWith(".scores")) write = () => formula(i("A"), o("="), of("softmax", i("S")));
  return { title, does, formula: write ? write() : null };
}
