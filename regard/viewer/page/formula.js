/* A formula in one line of text, such as "A = softmax(Q Kᵀ / √d)", drawn as MathML.
 *
 * "_" and "^" begin a subscript and a superscript: one name, number or sign, or several in braces. "/" makes
 * a fraction of the factors on its two sides; "√" is the root of what follows; round brackets around all that
 * is above, below or in a root only hold it together. An arrow stands above what follows. Every other sign is
 * itself, so that no text is wrong. */

import { m } from "./dom.js";

/** A part of a formula; `inside`, if it is in round brackets.
 * @typedef {{ drawn: Element, inside?: Element[] }} Factor */

const TOKENS = /[A-Za-z]+|\p{Script=Greek}|\d+(?:\.\d+)?|\S/gu;
const SEPARATORS = [..."=+−-⊙·,;×∗<>≤≥"];
const LARGE = ["Σ", "∏"]; // what is below them stands below, not beside
/** @type {Record<string, string>} */
const CLOSING = { "(": ")", "[": "]" };

/** @param {string} sign */
const operator = (sign) => m("mo", {}, sign === "Σ" ? "∑" : sign);
/** @param {Element[]} parts */
const row = (parts) => (parts.length === 1 ? parts[0] : m("mrow", {}, parts));
/** @param {Factor[]} factors */
const withoutBrackets = (factors) =>
  row(factors.length === 1 ? factors[0].inside ?? [factors[0].drawn] : factors.map(({ drawn }) => drawn));

/**
 * @param {string} text
 * @returns {Element}
 */
export const drawFormula = (text) =>
  m("math", { displaystyle: "true" }, m("mrow", {}, expression(text.match(TOKENS) ?? [])));

/**
 * Everything up to a closing bracket, or to the end; tokens are removed as they are drawn.
 * @param {string[]} tokens
 * @param {string} [end]
 * @returns {Element[]}
 */
function expression(tokens, end) {
  /** @type {Element[]} */
  const parts = [];
  /** @type {Factor[]} */
  let term = [];
  /** @type {Factor[] | null} */
  let above = null;
  const fraction = () => {
    if (above) term = [{ drawn: m("mfrac", {}, withoutBrackets(above), withoutBrackets(term)) }];
    above = null;
  };
  while (tokens.length) {
    const token = /** @type {string} */ (tokens.shift());
    if (token === end) break;
    if (token === "/") {
      fraction();
      [above, term] = [term, []];
    } else if (SEPARATORS.includes(token)) {
      fraction();
      parts.push(...term.map(({ drawn }) => drawn), operator(token));
      term = [];
    } else {
      term.push(scripted(tokens, token));
    }
  }
  fraction();
  return [...parts, ...term.map(({ drawn }) => drawn)];
}

/**
 * A factor with what stands above and below its line.
 * @type {(tokens: string[], token: string) => Factor}
 */
function scripted(tokens, token) {
  const base = factor(tokens, token);
  /** @type {Record<string, Element>} */
  const scripts = {};
  while (["_", "^", "ᵀ"].includes(tokens[0])) {
    const sign = /** @type {string} */ (tokens.shift());
    scripts[sign === "_" ? "below" : "above"] = sign === "ᵀ" ? m("mi", {}, "⊤") : script(tokens);
  }
  const { below, above } = scripts;
  if (below && above) return { drawn: m("msubsup", {}, base.drawn, below, above) };
  if (below) return { drawn: m(LARGE.includes(token) ? "munder" : "msub", {}, base.drawn, below) };
  return above ? { drawn: m("msup", {}, base.drawn, above) } : base;
}

/** @param {string[]} tokens */
function script(tokens) {
  const token = tokens.shift() ?? "";
  return token === "{" ? row(expression(tokens, "}")) : factor(tokens, token).drawn;
}

/**
 * A name, a number, a sign, a root, or what is in brackets.
 * @type {(tokens: string[], token: string) => Factor}
 */
function factor(tokens, token) {
  if (token in CLOSING) {
    const inside = expression(tokens, CLOSING[token]);
    const drawn = m("mrow", {}, operator(token), inside, operator(CLOSING[token]));
    return token === "(" ? { drawn, inside } : { drawn };
  }
  if (token === "√") {
    return { drawn: m("msqrt", {}, withoutBrackets([scripted(tokens, tokens.shift() ?? "")])) };
  }
  if (token === "→" || token === "←") {
    return { drawn: m("mover", {}, factor(tokens, tokens.shift() ?? "").drawn, operator(token)) };
  }
  if (/^\d/.test(token)) return { drawn: m("mn", {}, token) };
  return { drawn: /^\p{L}/u.test(token) && token !== "Σ" ? m("mi", {}, token) : operator(token) };
}
