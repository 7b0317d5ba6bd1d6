/* Plain sentences about the numbers on the page. */

import { formatPercent, formatWeight, h, label, last } from "./dom.js";
import { largestWeights } from "./scene_data.js";

/** @typedef {import("./scene_data.js").Scene} Scene */
/** @typedef {import("./scene_data.js").SceneSide} SceneSide */

/**
 * What heads are called, and what those that are called so do.
 * @type {Record<string, [name: string, words: string]>}
 */
const ROLES = {
  previous: ["previous-token head", "goes to the token just before"],
  next: ["next-token head", "goes to the token just after"],
  first: ["first-token sink", "rests on the first token, where it does little"],
  class: ["class-token head", "goes to the class token"],
  itself: ["stays-put head", "stays on the token itself"],
  induction: ["induction head", "goes to what followed the same token earlier"],
  duplicate: ["duplicate-token head", "goes to earlier copies of the same token"],
  alignment: ["alignment head", "runs along the diagonal, word for word"],
  near: ["neighbourhood head", "goes to the patches around"],
};

/**
 * The name of a head and what it does; null if it has none.
 * @param {string | null | undefined} role
 * @returns {[name: string, words: string] | null}
 */
export function roleWords(role) {
  if (!role) return null;
  const back = role.split(" ")[1];
  return back ? ["positional head", `goes to the token ${back} places before`] : ROLES[role] ?? null;
}

/** @param {string} word */
export const articleFor = (word) => (/^[aeiou]/.test(word) ? "an" : "a");

/** @param {string | undefined} token */
export const quote = (token) => `“${label(token ?? "", 24)}”`;

/**
 * A token as a sentence names it; a patch by its place.
 * @param {SceneSide} side
 * @param {number} i
 */
export function nameToken({ tokens, grid, before }, i) {
  if (!grid) return quote(tokens[i]);
  if (i < before) return "the class token";
  return `the patch in row ${Math.floor((i - before) / grid[1]) + 1}, column ${((i - before) % grid[1]) + 1}`;
}

/** @param {string} words */
const capital = (words) => words.charAt(0).toUpperCase() + words.slice(1);

/**
 * "Layer 2, head 3"
 * @param {Scene} scene
 */
export const headName = ({ layers, layer, attention, head }) => {
  const where = layers.length > 1 ? `layer ${layer}` : "";
  const which = (attention?.heads ?? 1) > 1 ? `head ${head}` : "";
  return capital([where, which].filter(Boolean).join(", ") || "the attention");
};

/**
 * Where a token looks in the selected head.
 * @type {(scene: Scene, query: number) => Child[]}
 */
export function describeLook(scene, query) {
  const weights = scene.weightsOf(query);
  const [best, second] = largestWeights(weights, 2);
  const who = capital(nameToken(scene.queries, query));
  if (!scene.attention) return [describeRecurrent(scene)];
  if (!best) return [`${who}: its weights are not in this file.`];
  const itself = scene.keys.side === scene.queries.side && best[0] === query;
  const much = best[1] >= 0.5 ? "mostly" : best[1] >= 0.25 ? "first" : "a little";
  const more = second && second[1] >= 0.1
    ? [", then at ", nameToken(scene.keys, second[0]), ` (${formatWeight(second[1])})`] : [];
  const target = itself ? "itself" : nameToken(scene.keys, best[0]);
  return [h("b", {}, `${headName(scene)}: `), who, ` looks ${much} at `, h("b", {}, target),
    ` (${formatWeight(best[1])})`, ...more, "."];
}

/** @param {Scene} scene */
const describeRecurrent = ({ keys: { tokens } }) =>
  `This model reads ${tokens.length} tokens in turn and carries a state from each to the next.`;

/**
 * What the model answers.
 * @type {(scene: Scene) => string}
 */
export function describeAnswer({ answers }) {
  const [best] = answers?.list ?? [];
  if (!answers || !best) return "";
  const verb = answers.row === null ? "The model answers" : `${answers.title} it puts`;
  return `${verb} ${quote(best.word)} (${formatPercent(best.p)}).`;
}

/**
 * What the selected head does on this input, with its figure.
 * @type {(scene: Scene) => string}
 */
export function describeRole({ attention, head }) {
  const role = attention?.roles?.[head];
  const words = roleWords(role);
  if (!attention) return "";
  if (!role || !words) return describeMixed(attention, head);
  const { weights, chance } = attention.patterns[role];
  const named = `${articleFor(words[0])} ${words[0]}`;
  return `It is ${named}: ${formatWeight(weights[head])} of its attention ${words[1]} (${
    formatWeight(chance)} if spread evenly).`;
}

const LEAST = 0.05; // of a head's attention, more than an even spread, that is worth a word

/**
 * What a head does that has no name: where the largest part goes, compared with an even spread.
 * @type {(attention: AttentionInfo, head: number) => string}
 */
function describeMixed({ patterns }, head) {
  const [best] = Object.entries(patterns).map(([name, { weights, chance }]) =>
    ({ words: roleWords(name)?.[1] ?? name, weight: weights[head], chance }))
    .sort((a, b) => b.weight - b.chance - a.weight + a.chance);
  if (!best) return "";
  if (best.weight - best.chance < LEAST) return "No named pattern fits.";
  return `No named pattern fits; the nearest: ${formatWeight(best.weight)} of its attention ${
    best.words} (${formatWeight(best.chance)} if spread evenly).`;
}

/**
 * Why the page opens on this head.
 * @type {(scene: Scene, manifest: Manifest) => string}
 */
export function describeChoice(scene, { opening, attentions }) {
  const { part, layer, head, attention } = scene;
  if (!opening || opening.part !== part || opening.layer !== layer || opening.head !== head) return "";
  const count = (attentions[part] ?? []).reduce((sum, { heads }) => sum + heads, 0);
  if (count === 1 || !Object.keys(attention?.patterns ?? {}).length) return "";
  const clear = attention?.roles?.[head];
  const why = clear ? "it does one thing most clearly" : "its attention is the least evenly spread";
  return `First of ${count} heads: ${why}.`;
}

/**
 * All patterns of a head: how much of its weight goes there, and by chance.
 * @type {(patterns: Record<string, HeadPattern>, head: number) => TableData}
 */
export function roleTable(patterns, head) {
  const rows = Object.entries(patterns).map(([name, { weights, chance, rows: count }]) => {
    const words = roleWords(name);
    const back = name.split(" ")[1];
    return [words && back ? `${words[0]}, ${back} back` : words?.[0] ?? name, weights[head].toFixed(4),
      chance.toFixed(4), count];
  });
  return { head: ["pattern", "on this input", "if spread evenly", "tokens that could"], rows };
}

/** @param {number[]} shape */
export const shapeWords = (shape) => shape.join(" × ");

/**
 * What a tensor's shape means: rows are tokens, columns are numbers or tokens.
 * @param {TensorInfo} info
 */
export const describeShape = ({ shape, columns }) =>
  `${shapeWords(shape.slice(-2))}${columns ? "" : ` · ${last(shape)} numbers each`}`;
