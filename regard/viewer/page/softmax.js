/* Probabilities from logits. */

/** @type {(logits: ArrayLike<number>, temperature?: number) => Float64Array} */
export function softmax(logits, temperature = 1) {
  const all = Float64Array.from(logits);
  const peak = all.reduce((a, b) => Math.max(a, b), -Infinity);
  const exps = all.map((x) => Math.exp((x - peak) / temperature));
  const sum = exps.reduce((a, b) => a + b, 0);
  return exps.map((x) => x / sum);
}
