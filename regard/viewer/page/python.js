/* Lines of Python that compute the same numbers. */

import { fileKind, pythonString } from "./dom.js";

/**
 * @param {Manifest} manifest
 */
export function loadLines({ model, step }) {
  const load = `regard.load(${pythonString(model.name ?? "RUN")})`;
  return ["import regard", "", `model = ${step === null ? load : `regard.at_step(${load}, ${step})`}`];
}

/**
 * What the model was given: a picture, a text, or a text and its answer.
 * @param {Manifest} manifest
 */
export function inputLiteral({ input, answer, tokens, model, exact, ids }) {
  if (exact) {
    const lists = [ids.text ?? ids.source, ids.written].filter(Boolean).map((list) => `[${list.join(", ")}]`);
    return lists.length > 1 ? `(${lists.join(", ")})` : lists[0];
  }
  if (input === null) return `"${fileKind(model).noun}.${fileKind(model).suffix}"`;
  const isPair = tokens.written && answer !== null && model.task !== "classify";
  return isPair ? `(${pythonString(input)}, ${pythonString(answer)})` : pythonString(input);
}
