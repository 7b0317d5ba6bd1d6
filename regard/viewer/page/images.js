/* How a number of a picture, or of a convolution, is computed from others. */

import { last } from "./dom.js";
import { ACTIVATIONS, constant, productTerm, totalOf } from "./operands.js";

/** @typedef {import("./operands.js").Cell} Cell */
/** @typedef {import("./operands.js").Scalar} Scalar */
/** @typedef {import("./operands.js").SumTerm} SumTerm */
/** @typedef {import("./operands.js").Vector} Vector */
/**
 * @template {object} S
 * @template V
 * @typedef {import("./operations.js").Operation<S, V>} Operation
 */

/**
 * All numbers of an image, and the place of the cell's among them.
 * @type {(cell: Cell, x: string) => Promise<[Vector, number]>}
 */
export async function allChannels(cell, x) {
  const [, height, width] = cell.shape;
  const { data } = await cell.source.tensor(x);
  const link = (/** @type {number} */ i) =>
    cell.link(x, Math.floor(i / width) % height, i % width, Math.floor(i / (width * height)));
  return [{ values: data, link }, (cell.head * height + cell.row) * width + cell.column];
}

/** @type {Operation<SumOf<"pixel">, Scalar>} */
export const pixel = {
  operands: (cell, { x }) => cell.one(x),
  evaluate({ value }, sum, { head }) {
    const [mean, std] = [sum.mean, sum.std].map((of) => of[head % of.length]);
    return (value / 255 - mean) / std;
  },
  show: ({ value, link }, { mean, std }, { head }) => ({
    steps: [["pixel", value, link], ["÷ 255 − mean", mean[head % mean.length]],
      ["÷ deviation", std[head % std.length]]],
  }),
};

/** @type {Operation<SumOf<"patch">, Scalar>} */
export const patch = {
  operands(cell, { x, side, height = side }) {
    const across = last(cell.manifest.tensors[x].shape) / side;
    const [channel, within] = [Math.floor(cell.column / (side * height)), cell.column % (side * height)];
    const row = Math.floor(cell.row / across) * height + Math.floor(within / side);
    return cell.one(x, row, (cell.row % across) * side + (within % side), channel);
  },
  evaluate: ({ value }) => value,
  show: ({ value, link }) =>
    ({ steps: [[`channel, row and column ${link?.split(":")[1]} of the picture`, value, link]] }),
};

/** @type {Operation<SumOf<"regions">, Scalar>} */
export const regions = {
  operands(cell, { x }) {
    const width = last(cell.manifest.tensors[x].shape);
    return cell.one(x, Math.floor(cell.row / width), cell.row % width, cell.column);
  },
  evaluate: ({ value }, { f }) => (f ? ACTIVATIONS[f](value) : value),
  show: ({ value, link }, { f }) => ({ steps: [[f ? `${f} of` : "the same as", value, link]] }),
};

/** @type {Operation<SumOf<"conv">, { terms: SumTerm[], b: Scalar | null }>} */
export const conv = {
  async operands(cell, { x, W, b, f, size, stride, groups }) {
    const [channels, height, width] = cell.manifest.tensors[x].shape;
    const inputs = channels / groups;
    const first = Math.floor(cell.head / (cell.shape[0] / groups)) * inputs;
    const [top, left] = [[cell.row, height], [cell.column, width]].map(([at, n]) =>
      at * stride - Math.floor(Math.max((Math.ceil(n / stride) - 1) * stride + size - n, 0) / 2));
    const weights = await cell.along(W, cell.head);
    const [r0, r1] = [Math.max(0, top), Math.min(height, top + size)];
    const [c0, c1] = [Math.max(0, left), Math.min(width, left + size)];
    /** @type {SumTerm[]} */
    const terms = [];
    await Promise.all(Array.from({ length: inputs }, async (_, i) => {
      const part = { head: first + i, rows: `${r0}:${r1}`, columns: `${c0}:${c1}` };
      const { data } = await cell.source.tensor(x, part);
      data.forEach((value, n) => {
        const [r, c] = [r0 + Math.floor(n / (c1 - c0)), c0 + (n % (c1 - c0))];
        const weight = weights.values[(i * size + r - top) * size + c - left];
        const input = { value: f ? ACTIVATIONS[f](value) : value, link: cell.link(x, r, c, first + i) };
        terms.push(productTerm(`channel ${first + i}, ${r}, ${c}`, input, constant(weight)));
      });
    }));
    return { terms, b: b ? await cell.one(b, 0, cell.head) : null };
  },
  evaluate: ({ terms, b }) => totalOf(terms) + (b?.value ?? 0),
  show: ({ terms, b }, { f }) => ({
    head: ["of", f ? `${f}(x)` : "x", "weight"],
    terms: b ? [...terms, productTerm("bias", b, constant(1))] : terms,
  }),
};
