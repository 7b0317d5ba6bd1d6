/* The logit lens of a saved model: what its last steps, from the output of the last block to the
   probabilities, make of the output of each block. */

import { argmax, topIds } from "./local_tasks.js";
import { rowOperation } from "./local_ops.js";

const TOP = 5; // tokens of each layer
const OUTPUT = /^(?:decoder\.)?(?:blocks\.)?(\d+)\.output$/;

/** @typedef {import("./local_run.js").Run} Run */
/** @typedef {import("./local_tasks.js").Model} Model */

/** The outputs of the layers, after the input of the first.
 * @type {(run: Run) => [layer: number | "embedding", name: string][]} */
function layersOf({ program: { names } }) {
  const first = ["decoder.input", "input"].find((name) => names.includes(name));
  const outputs = names.flatMap((name) => {
    const match = OUTPUT.exec(name);
    return match ? [/** @type {[number, string]} */ ([Number(match[1]), name])] : [];
  });
  return first ? [["embedding", first], ...outputs] : outputs;
}

/** The steps that lead from a value to the logits.
 * @type {(run: Run, from: string) => ProgramStep[]} */
function stepsAfter({ program: { byName } }, from) {
  /** @type {ProgramStep[]} */
  const steps = [];
  for (let name = "logits"; name !== from;) {
    const step = /** @type {ProgramStep} */ (byName.get(name));
    steps.unshift(step);
    name = /** @type {string} */ (step.x);
  }
  return steps;
}

/** A run in which one value of a row is another.
 * @type {(run: Run, steps: ProgramStep[], from: string, row: number, vector: Float32Array) =>
 *   Float32Array} */
function applySteps(run, steps, from, row, vector) {
  const values = new Map([[from, vector]]);
  const replaced = /** @type {Run} */ (/** @type {unknown} */ ({
    row: (/** @type {string} */ name, /** @type {number} */ t) => values.get(name) ?? run.row(name, t),
    weight: (/** @type {string} */ name) => run.weight(name),
    count: (/** @type {string} */ name) => run.count(name),
  }));
  for (const step of steps) values.set(step.name, rowOperation(step)(replaced, step, row));
  return /** @type {Float32Array} */ (values.get("logits"));
}

/** @type {(model: Model, run: Run, row: number) => Lens} */
export function lensLayers({ writer }, run, row) {
  const layers = layersOf(run);
  const [, from] = layers[layers.length - 1];
  const steps = stepsAfter(run, from);
  const final = argmax(run.row("logits", row));
  return {
    final: writer.words([final])[0],
    layers: layers.map(([layer, name]) => {
      const logits = applySteps(run, steps, from, row, run.row(name, row));
      const peak = logits[argmax(logits)];
      const exps = Float64Array.from(logits, (x) => Math.exp(x - peak));
      const sum = exps.reduce((a, b) => a + b, 0);
      const p = exps.map((x) => x / sum);
      const best = topIds(p, TOP);
      return {
        layer, words: writer.words(best), p: best.map((id) => p[id]), its: p[final],
        rank: 1 + p.reduce((count, x) => count + (x > p[final] ? 1 : 0), 0),
      };
    }),
  };
}
