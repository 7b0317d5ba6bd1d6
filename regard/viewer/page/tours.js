/* Guided tours: a list of addresses with a sentence each, on the user's own model. */

import { h } from "./dom.js";
import { completeState, largestWeights, readScene } from "./scene_data.js";
import { readChanges, readState, selectHead } from "./selection.js";
import { TELLING, allTours, findHead } from "./tour_steps.js";

/** Everything that a step of a tour may set: what it does not name is as if the page were opened anew. */
const CLEARED = {
  depth: null, product: null, cell: null, of: null, at: null, form: null, step: null, words: null, by: null,
  row: null, root: null, temperature: null,
};

/** @type {(state: State, changes: StateChanges) => State} */
const changeState = (state, changes) => Object.fromEntries(Object.entries({ ...state, ...changes })
  .filter(([, value]) => value !== null && value !== undefined)
  .map(([name, value]) => [name, String(value)]));

/**
 * Go to a step of a tour.
 * @type {(app: App, name: string, stop: number, how?: { quiet?: boolean }) => Promise<void>}
 */
async function goTo(app, name, stop, how) {
  const [address] = allTours(app.manifest)[name].steps[stop - 1];
  const left = leaveStep(app);
  const changes = await resolveAddress({ ...app, state: changeState(app.state, left) }, address);
  app.go({ ...CLEARED, ...left, ...changes, tour: name, stop }, how);
}

/**
 * What a step changed in the model is changed back when it is left.
 * @param {App} app
 * @returns {StateChanges}
 */
function leaveStep({ state }) {
  if (!state.toured) return {};
  const rest = readChanges(state).slice(0, -1);
  return { changes: rest.length ? JSON.stringify(rest) : null, toured: null };
}

/**
 * An address of a tour as one of the page: what the model at hand decides is filled in.
 * @type {(app: App, address: string) => Promise<StateChanges>}
 */
async function resolveAddress(app, address) {
  const { cell, step, find, do: deed, ...changes } = readState(address);
  const found = find ? findHead(app.manifest, find) : null;
  const token = app.state.part === found?.part ? app.state.token : null;
  const place = found ? { ...found, token } : {};
  const there = { ...app, state: changeState(app.state, place) };
  const named = step?.startsWith(`${TELLING}:`)
    ? `${selectHead(there).attention.name}.${step.slice(TELLING.length + 1)}` : step ?? null;
  const changed = deed ? await changeModel(there, deed) : {};
  return { ...changes, ...place, cell: await resolveCell(there, cell), step: named, ...changed };
}

/**
 * What a step changes in the model: its head is silenced, or the token that is looked at most is hidden.
 * @type {(app: App, deed: string) => Promise<StateChanges>}
 */
async function changeModel(app, deed) {
  const { attention, head } = selectHead(app);
  const scene = await readScene(app);
  const [best] = largestWeights(scene.weightsOf(scene.token), 1);
  /** @type {Change} */
  const change = deed === "hide" ? { kind: "hide", token: best?.[0] ?? 0 }
    : { kind: "silence", part: attention.name, head };
  return { changes: JSON.stringify([...readChanges(app.state), change]), toured: 1 };
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
  root.hidden = !listed && !tours[tour ?? ""];
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
  const end = () => app.go({ ...leaveStep(app), tour: null, stop: null });
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
 * Go on in a tour, or back.
 * @type {(app: App, by: number) => void}
 */
export function moveTour(app, by) {
  const { tour = "", stop } = app.state;
  const to = (Number(stop) || 1) + by;
  if (allTours(app.manifest)[tour]?.steps[to - 1]) goTo(app, tour, to);
}
