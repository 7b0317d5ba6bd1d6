/* The guided tours of the page, and what of them applies to a model. */

import { allAttentions } from "./selection.js";

/** A value of an address that the model at hand decides: the head, or the number where it looks most. */
export const TELLING = "telling";

/** @typedef {{ part: string, layer: number, head: number }} HeadPlace */
/** @typedef {Tour & { applies: (manifest: Manifest) => unknown }} BuiltTour */

/** @type {Record<string, BuiltTour>} */
const TOURS = {
  attention: {
    title: "Attention, step by step",
    applies: (manifest) => allAttentions(manifest).length,
    steps: [
      ["view=look",
        "Every token looks at the others and takes from them what it needs. The ribbons show how "
        + "much: the wider, the more. Point at another token to see where it looks."],
      ["view=look&depth=block",
        "The model is a stack of blocks like this one. Each lets the tokens look at each other, then "
        + "works on every token alone, and adds both to what the token carries."],
      ["view=look&depth=head",
        "One head. Each token has a query (what it asks for), a key (what it offers) and a value "
        + "(what it hands on): three rows of numbers."],
      ["view=look&depth=product",
        "A query times a key is one number: how well the two fit. Press Play to see the products add "
        + "up."],
      [`view=look&depth=product&cell=${TELLING}:scores`,
        "Here is that number with all its terms, added up again by the page and ticked off against "
        + "the model's own."],
      [`view=look&depth=product&cell=${TELLING}:weights`,
        "The softmax turns the scores of a token into weights that add up to 1. What is masked gets "
        + "none."],
      ["view=look&depth=product&product=heads",
        "The weights times the values: each token takes a little of every other, as much as it looked"
        + " there."],
      ["view=attention&form=atlas",
        "Every layer has several heads, and each looks for something else. A click opens one; the "
        + "scene names those that do one thing."],
    ],
  },
  answer: {
    title: "From embedding to answer",
    applies: () => true,
    steps: [
      ["view=walk",
        "A token enters as a row of numbers, its embedding: the same row wherever the token stands."],
      ["view=space",
        "Tokens that are used alike have embeddings that lie near each other."],
      ["view=look",
        "The rows flow through the blocks. In each block tokens look at each other."],
      ["view=look&depth=block",
        "Nothing is replaced: every part adds its numbers to those that came in, so that the first "
        + "ones can still be read at the end."],
      ["view=next&words=layers",
        "What would the model say after each layer? Where the answer can be read off early, the later"
        + " layers only make it surer."],
      ["view=next&words=parts",
        "And which part said it? The score of the answer is a sum: what the embedding, each head and each "
        + "feed-forward layer added to it."],
      ["view=next",
        "At the end everything that the model can answer gets a score, and the softmax makes "
        + "probabilities of them."],
    ],
  },
  root: {
    title: "Why the square root",
    applies: (manifest) => findHead(manifest, "scaled"),
    steps: [
      ["view=look&depth=head&find=scaled",
        "A score is a query times a key: {d} products, added up. The more numbers a head has, the more "
        + "products there are, and the larger the scores become."],
      [`view=look&depth=product&find=scaled&cell=${TELLING}:scores`,
        "One score with its {d} terms. If the terms are independent of each other and vary by 1, their "
        + "sum varies by √{d} = {root}."],
      [`view=walk&find=scaled&step=${TELLING}:scores`,
        "All scores of this layer, as they are. See how far they lie apart."],
      [`view=walk&find=scaled&step=${TELLING}:scaled`,
        "The same, divided by √{d} = {root}. However many numbers a head has, the scores vary by about "
        + "the same now."],
      ["view=attention&find=scaled",
        "The softmax of the divided scores: every token can look at several others. Remember how many "
        + "bits stand beside the title: the more, the more tokens it looks at."],
      ["view=attention&find=scaled&root=without",
        "The softmax of the scores as they were. The largest of each row takes more, the others less: "
        + "fewer bits. Where one weight is nearly 1, its gradient is nearly 0, and the head hardly learns."],
      ["view=next&temperature={cool}",
        "The same at the output: a temperature of 1/√{d} = {cool} undoes such a division, and the likeliest "
        + "token takes more. Move the slider back to 1 to compare."],
    ],
  },
  mask: {
    title: "What a mask does",
    applies: (manifest) => findHead(manifest, "masked"),
    steps: [
      ["view=attention&find=masked",
        "One head: each row is a token that looks, each column one that is looked at. Grey cells are "
        + "masked. Point at one to read why."],
      [`view=walk&find=masked&step=${TELLING}:scaled`,
        "The scores know nothing of a mask: every query is multiplied by every key, also by those that it "
        + "may not look at."],
      [`view=walk&find=masked&step=${TELLING}:mask`,
        "The mask: 1 where a token may look, 0 where it may not."],
      [`view=look&depth=product&find=masked&cell=${TELLING}:weights`,
        "The softmax only adds up what is allowed. Masked keys get a weight of 0, and the others share 1."],
      ["view=look&find=masked",
        "So no ribbon comes from a masked token. Point at the first and at the last token to compare."],
      ["view=next&row=0",
        "As no token sees what follows, each of them can be asked what comes next: one text is as many "
        + "exercises as it has tokens, all learned from at once. Here is the first."],
      ["view=whatif&find=masked&do=hide",
        "A mask by hand: the token that was looked at most is hidden from all others. Below, the answer "
        + "before and after."],
    ],
  },
  heads: {
    title: "What each head does",
    applies: (manifest) => allAttentions(manifest).reduce((sum, { heads }) => sum + heads, 0) > 1,
    steps: [
      ["view=look&find=opening",
        "This model has {heads} heads. The page opens on the most telling one: that which does one thing "
        + "most clearly. The figures behind it are below the picture."],
      ["view=look&find=first",
        "The head that looks most at the first token. Many heads rest there where they find nothing that "
        + "they look for."],
      ["view=look&find=class",
        "The head that looks most at the class token, which carries what is known of the whole picture."],
      ["view=look&find=previous",
        "The head that looks most at the token just before. Later layers use it to find what followed what."],
      ["view=look&find=near",
        "The head that looks most at the patches around each patch, as a convolution does."],
      ["view=look&find=alignment",
        "The head that runs most along the diagonal: what it reads word for word, while it writes."],
      ["view=attention&form=atlas",
        "All heads at once. Frame them by what they do, or click one to open it."],
      ["view=whatif&find=opening&do=silence",
        "What if the first of these heads were silent? If the answer stays, others do its work. Rank all "
        + "heads below to see which one the answer needs."],
    ],
  },
};

/**
 * All tours of a model by name: those of a lecturer first, and of each the steps that apply.
 * @param {Manifest} manifest
 * @returns {Record<string, Tour>}
 */
export function allTours(manifest) {
  const facts = listFacts(manifest);
  const built = Object.entries(TOURS).filter(([, { applies }]) => applies(manifest))
    .map(([name, { title, steps }]) => [name, {
      title,
      steps: steps.map(([address, words]) => [fill(address, facts), fill(words, facts)])
        .filter(([address]) => stepApplies(manifest, new URLSearchParams(address))),
    }]);
  return { ...manifest.tours, ...Object.fromEntries(built) };
}

/** @type {(text: string, facts: Record<string, string>) => string} */
const fill = (text, facts) => text.replace(/\{(\w+)\}/g, (_, name) => facts[name] ?? "");

/** @type {(manifest: Manifest) => Record<string, string>} */
function listFacts(manifest) {
  const heads = allAttentions(manifest).reduce((sum, attention) => sum + attention.heads, 0);
  const place = findHead(manifest, "scaled");
  const d = place ? widthOf(manifest, attentionAt(manifest, place)) : 1;
  const root = Math.sqrt(d);
  return { heads: String(heads), d: String(d), root: root.toFixed(2), cool: (1 / root).toFixed(2) };
}

/** @type {(manifest: Manifest, place: HeadPlace) => AttentionInfo} */
const attentionAt = ({ attentions }, { part, layer }) => /** @type {AttentionInfo} */ (
  attentions[/** @type {AttentionPart} */ (part)]?.find((one) => one.layer === layer));

/** @type {(manifest: Manifest, attention: AttentionInfo) => number} numbers of a query */
const widthOf = ({ tensors }, { name }) => tensors[`${name}.q`]?.shape.slice(-1)[0] ?? 1;

/** @type {(manifest: Manifest, attention: AttentionInfo) => boolean} by the root of its width */
export function isScaled(manifest, attention) {
  const op = manifest.sums[`${attention.name}.scaled`];
  if (op?.does !== "scale" || manifest.sums[`${attention.name}.weights`]?.does !== "softmax") return false;
  return Math.abs(op.by * Math.sqrt(widthOf(manifest, attention)) - 1) < 1e-6;
}

/**
 * The head that an address looks for: the one that the page opens with, one with a mask or with divided
 * scores, or the one with the most weight on a pattern; null if there is none.
 * @type {(manifest: Manifest, what: string) => HeadPlace | null}
 */
export function findHead(manifest, what) {
  const { attentions, opening } = manifest;
  if (what === "opening") return opening;
  const all = Object.entries(attentions).flatMap(([part, layers]) =>
    layers.map((attention) => ({ part, attention })));
  if (what === "masked" || what === "scaled") {
    const fits = all.filter(({ attention }) =>
      (what === "masked" ? attention.masked : isScaled(manifest, attention)));
    const first = fits.find(({ part, attention }) =>
      part === opening?.part && attention.layer === opening.layer);
    if (first && opening) return opening;
    const found = fits[fits.length - 1];
    return found ? { part: found.part, layer: found.attention.layer, head: 0 } : null;
  }
  const heads = all.flatMap(({ part, attention: { layer, patterns } }) =>
    (patterns[what]?.weights ?? []).map((weight, head) => ({ weight, place: { part, layer, head } })));
  return heads.sort((a, b) => b.weight - a.weight)[0]?.place ?? null;
}

/**
 * Whether a model has what a step shows.
 * @type {(manifest: Manifest, address: URLSearchParams) => boolean}
 */
function stepApplies(manifest, address) {
  const { outputs, sums } = manifest;
  const [find, view] = [address.get("find"), address.get("view")];
  const isProduct = address.get("depth") === "product" && !address.has("cell") && !address.has("of");
  const products = allAttentions(manifest).every(({ name }) => sums[`${name}.scores`]?.does === "dot");
  if (isProduct && !products) return false; // additive scores are none
  const place = find ? findHead(manifest, find) : null;
  if (find && !place) return false;
  if ((view === "next" || view === "whatif") && !outputs) return false;
  if (address.get("words") === "layers" && !outputs?.lens) return false;
  if (address.get("words") === "parts" && !outputs?.parts) return false;
  if ((address.has("temperature") || address.has("row")) && outputs?.kind !== "next") return false;
  return address.get("do") !== "hide"
    || (place !== null && ["text", "source"].includes(attentionAt(manifest, place).columns));
}
