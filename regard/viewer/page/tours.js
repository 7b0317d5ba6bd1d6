/* Guided tours: a list of addresses with a sentence each, on the user's own model. */

import { h } from "./dom.js";
import { completeState, largestWeights, readScene } from "./scene_data.js";

/** A value of an address that the model at hand decides: the number where the selected token looks most. */
const TELLING = "telling";

/** @type {Record<string, Tour>} */
const TOURS = {
  attention: {
    title: "Attention in eight steps",
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
      ["view=look&depth=product&of=heads",
        "The weights times the values: each token takes a little of every other, as much as it looked"
        + " there."],
      ["view=attention&form=atlas",
        "Every layer has several heads, and each looks for something else. A click opens one; the "
        + "scene names those that do one thing."],
    ],
  },
  answer: {
    title: "From embedding to answer",
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
      ["view=next",
        "At the end every token of the vocabulary gets a score, and the softmax makes probabilities "
        + "of them. Temperature and top-k change which one is drawn."],
    ],
  },
};

/**
 * All tours by name: those of a lecturer first.
 * @param {Manifest} manifest
 * @returns {Record<string, Tour>}
 */
const allTours = ({ tours, attentions }) => ({
  ...tours, ...(Object.keys(attentions).length ? TOURS : { answer: TOURS.answer }),
});

/** Everything that a step of a tour may set: what it does not name is as if the page were opened anew. */
const CLEARED = {
  depth: null, cell: null, of: null, at: null, form: null, step: null, words: null, by: null, row: null,
};

/**
 * Go to a step of a tour.
 * @type {(app: App, name: string, stop: number, how?: { quiet?: boolean }) => Promise<void>}
 */
async function goTo(app, name, stop, how) {
  const { steps } = allTours(app.manifest)[name];
  const [address] = steps[stop - 1];
  const { cell, ...changes } = Object.fromEntries(new URLSearchParams(address));
  app.go({ ...CLEARED, ...changes, cell: await resolveCell(app, cell), tour: name, stop }, how);
}

/**
 * Where an address that names a step of a tour, and nothing else, leads.
 * @param {App} app
 */
export async function enterTour(app) {
  const { tour, stop, view } = app.state;
  const steps = allTours(app.manifest)[tour ?? ""]?.steps;
  if (!tour || !steps || view !== undefined) return;
  app.go(completeState(app), { quiet: true });
  await goTo(app, tour, stepNumber(stop, steps.length), { quiet: true });
}

/** @type {(stop: string | undefined, count: number) => number} */
const stepNumber = (stop, count) => Math.max(1, Math.min(count, Number(stop) || 1));

/** @type {(app: App, cell: string | undefined) => Promise<string | null>} */
async function resolveCell(app, cell) {
  if (!cell?.startsWith(`${TELLING}:`)) return cell ?? null;
  const { attention, head, token, weightsOf } = await readScene(app);
  const [best] = largestWeights(weightsOf(token), 1);
  const name = `${attention?.name}.${cell.slice(TELLING.length + 1)}`;
  return best ? `${name}:${head},${token},${best[0]}` : null;
}

/**
 * The bar of the tour that the address names.
 * @param {HTMLElement} root
 * @param {App} app
 */
export function showTour(root, app) {
  const tours = allTours(app.manifest);
  const { tour, stop, tours: listed } = app.state;
  root.hidden = !tour && !listed;
  if (!tour || !tours[tour]) {
    root.replaceChildren(...(listed ? tourList(app, tours) : []));
    return;
  }
  const { title, steps } = tours[tour];
  const at = stepNumber(stop, steps.length);
  /** @type {(to: number, id: string, words: string) => HTMLElement} */
  const step = (to, id, words) => h("button", {
    type: "button", id, disabled: to < 1 || to > steps.length, onclick: () => goTo(app, tour, to),
  }, words);
  const end = () => app.go({ tour: null, stop: null });
  const where = h("b", {}, `${title} · ${at} of ${steps.length}`);
  root.replaceChildren(h("p", { role: "status" }, where, " ", steps[at - 1][1]),
    h("div", { class: "row" }, step(at - 1, "tour-back", "‹ Back"), step(at + 1, "tour-next", "Next ›"),
      h("button", { type: "button", id: "tour-end", onclick: end }, "End")));
}

/** @type {(app: App, tours: Record<string, Tour>) => HTMLElement[]} */
function tourList(app, tours) {
  const start = (/** @type {string} */ name) => () => {
    app.state = { ...app.state };
    delete app.state.tours;
    goTo(app, name, 1);
  };
  const close = () => app.go({ tours: null }, { replace: true });
  return [h("p", {}, h("b", {}, "Guided tours"), " of this model; n and p go on and back."),
    h("div", { class: "row" }, Object.entries(tours).map(([name, { title }]) =>
      h("button", { type: "button", id: `tour-${name}`, onclick: start(name) }, title)),
    h("button", { type: "button", id: "tour-end", onclick: close }, "Close"))];
}

/**
 * The keys of a tour; returns whether one was used.
 * @type {(app: App, key: string) => boolean}
 */
export function tourKey(app, key) {
  const by = { n: 1, p: -1 }[key];
  const { tour, stop } = app.state;
  const steps = tour ? allTours(app.manifest)[tour]?.steps : null;
  if (!by || !tour || !steps) return false;
  const to = (Number(stop) || 1) + by;
  if (to >= 1 && to <= steps.length) goTo(app, tour, to);
  return true;
}
