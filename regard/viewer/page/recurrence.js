/* The operations of recurrent cells: products of gates, and the state of the step before. */

import { last } from "./dom.js";
import { ACTIVATIONS, constant, lastPart, productTerm, sigmoid } from "./operands.js";

/** @typedef {import("./operands.js").Scalar} Scalar */
/**
 * @template {object} S
 * @template V
 * @typedef {import("./operations.js").Operation<S, V>} Operation
 */

/** @type {Operation<SumOf<"gate">, { x: Scalar, by: Scalar }>} */
export const gate = {
  operands: async (cell, { x, by }) => ({ x: await cell.one(x), by: await cell.one(by, cell.row, 0) }),
  evaluate: ({ x, by }) => x.value * sigmoid(by.value),
  show: ({ x, by }) =>
    ({ steps: [["x", x.value, x.link], ["gate", by.value, by.link], ["× σ(gate)", sigmoid(by.value)]] }),
};

/** @type {Operation<SumOf<"multiply">, { x: Scalar, by: Scalar }>} */
export const multiply = {
  operands: async (cell, { x, by }) => ({ x: await cell.one(x), by: await cell.one(by) }),
  evaluate: ({ x, by }) => x.value * by.value,
  show: ({ x, by }, sum) =>
    ({ steps: [[lastPart(sum.x), x.value, x.link], [`× ${lastPart(sum.by)}`, by.value, by.link]] }),
};

/** @type {Operation<SumOf<"blend">, { x: Scalar, y: Scalar, by: Scalar }>} */
export const blend = {
  operands: async (cell, { x, y, by }) =>
    ({ x: await cell.one(x), y: await cell.one(y), by: await cell.one(by) }),
  evaluate: ({ x, y, by }) => by.value * y.value + (1 - by.value) * x.value,
  show: ({ x, y, by }, sum) => ({
    head: ["of", "number", lastPart(sum.by)],
    terms: [productTerm(lastPart(sum.y), y, by),
      productTerm(`${lastPart(sum.x)}, by 1 − ${lastPart(sum.by)}`, x, { ...by, value: 1 - by.value })],
  }),
};

/** @type {Operation<SumOf<"combine">, { a: Scalar, b: Scalar }[]>} */
export const combine = {
  operands: (cell, { terms }) =>
    Promise.all(terms.map(async ([a, b]) =>
      ({ a: await cell.one(a), b: b ? await cell.one(b) : constant(1) }))),
  evaluate(values, { f }) {
    const total = values.reduce((sum, { a, b }) => sum + a.value * b.value, 0);
    return f ? ACTIVATIONS[f](total) : total;
  },
  show: (values, { terms, f }) => ({
    head: ["product of", "first", "second"],
    terms: values.map(({ a, b }, i) =>
      productTerm(terms[i].filter((name) => name !== null).map(lastPart).join(" · "), a, b)),
    note: f && `The result is ${f} of the sum.`,
  }),
};

/** @type {Operation<SumOf<"concat">, { x: Scalar, name: string }>} */
export const concat = {
  async operands(cell, { x, row }) {
    let column = cell.column;
    for (const [i, name] of x.entries()) {
      const width = last(cell.manifest.tensors[name].shape);
      const from = cell.rowOf(name, row?.[i] ?? cell.row);
      if (column < width) return { x: await cell.one(name, from, column), name };
      column -= width;
    }
    throw new Error("this number is beyond the values side by side");
  },
  evaluate: ({ x }) => x.value,
  show: ({ x, name }) => ({ steps: [[`a part of ${name}`, x.value, x.link]] }),
};

/** @type {Operation<SumOf<"before">, Scalar>} */
export const before = {
  async operands(cell, { x, first, row = 0, back }) {
    const from = cell.row + (back ? 1 : -1);
    if (from >= 0 && from < cell.shape[0]) return cell.one(x, from);
    return first ? cell.one(first, row) : constant(0);
  },
  evaluate: ({ value }) => value,
  show: ({ value, link }, { x, first }) => ({
    steps: [[link?.startsWith(`${x}:`) ? lastPart(x) : `the first of ${first ?? "all"}`, value, link]],
  }),
};
