/* What if: silenced heads, other weights, hidden tokens, parts of another input; and the predictions then. */

import { changeForm, changeLines, describeChange, namedAttentions } from "./changes.js";
import {
  alertBox, formatNumber, formatPercent, h, label, messageOf, numberTokens, range, stepMenu,
} from "./dom.js";
import { Heatmap } from "./heatmap.js";
import { inputLiteral, loadLines } from "./python.js";
import { heading, readChanges, rowChanges, selectedToken, setChanges } from "./selection.js";
import { drawVersus } from "./versus.js";

const RANKED = 20; // heads in the list

/** @typedef {(part: string, head: number) => void} Silence */

/** @type {View} */
export const whatif = {
  async show(root, app) {
    const { manifest, state, source } = app;
    if (!manifest.outputs) {
      root.append(heading("What if"), h("p", {},
        "This model does not predict tokens or classes, so there is no answer whose change could be shown."));
      return;
    }
    const changes = readChanges(state);
    app.current = { name: "what-if", python: (input) => changeLines(manifest, changes, input) };
    if (!source.live) {
      showLines(root, manifest, changes);
      return;
    }
    const set = (/** @type {Change[]} */ next) => setChanges(app, next);
    const { result, problem } = await runChanges(app, changes);
    root.append(heading("What if", "changes apply while the model runs, in all views; it stays as it is"),
      changeForm(app, result.patchable, (change) => set([...changes, change])),
      changeList(manifest, changes, result.problems ?? [], set));
    if (problem) root.append(alertBox(problem));
    if (!changes.length) {
      root.append(h("p", { class: "pale" }, "Nothing is changed yet: before and after are the same."));
    }
    const { csv } = showAnswer(root, app, result, problem);
    app.current = { ...app.current, csv };
    showRanking(root, app, (part, head) => set([...changes, { kind: "silence", part, head }]));
  },
};

/** @type {(root: HTMLElement, manifest: Manifest, changes: Change[]) => void} */
function showLines(root, manifest, changes) {
  const first = namedAttentions(manifest)[0];
  /** @type {Change[]} */
  const example = first ? [{ kind: "silence", part: first.name, head: 0 }] : [];
  const lines = changeLines(manifest, changes.length ? changes : example, inputLiteral(manifest));
  root.append(heading("What if"),
    h("p", {}, "To change something, the model itself is needed, and this file holds only its numbers. "
      + "Open it with regard look; or in Python:"),
    h("pre", { tabindex: "0", id: "lines" }, [...loadLines(manifest), ...lines].join("\n")));
}

/**
 * Run the model with the changes; if they don't apply, without, and say why.
 * @type {(app: App, changes: Change[]) => Promise<{ result: ChangeResult, problem: string | null }>}
 */
async function runChanges(app, changes) {
  const { source, state, taken, manifest } = app;
  if (!source.live) throw new Error("the model is not here");
  const row = state.row === undefined ? selectedToken(app, manifest.outputs?.rows ?? null) ?? undefined
    : Number(state.row) | 0;
  try {
    if (changes.some(({ picture }) => picture) && !taken) {
      throw new Error("The other file is no longer here; choose it again.");
    }
    const sent = changes.map((change) => (change.picture ? { ...change, picture: taken } : change));
    const body = { trace: manifest.base ?? manifest.id, changes: sent, row, lenient: true };
    return { result: await source.send("change", body), problem: null };
  } catch (error) {
    const body = { trace: manifest.base ?? manifest.id, changes: [], row };
    return { result: await source.send("change", body), problem: messageOf(error) };
  }
}

/**
 * @param {Manifest} manifest
 * @param {Change[]} changes
 * @param {(string | null)[]} problems why a change has no effect
 * @param {(changes: Change[]) => void} set
 */
function changeList(manifest, changes, problems, set) {
  return h("ol", { class: "changes", "aria-label": "Changes" }, changes.map((change, i) => {
    const words = describeChange(manifest, change);
    const remove = {
      type: "button", id: `remove-${i}`, "aria-label": `Remove: ${words}`,
      onclick: () => set(changes.filter((_, n) => n !== i)),
    };
    const problem = problems[i];
    return h("li", {}, h("span", {}, words), h("button", remove, "Remove"),
      problem ? alertBox(`Not applied: ${label(problem, 300)}`) : null);
  }));
}

/**
 * What the model predicts, before and after.
 * @param {HTMLElement} root
 * @param {App} app
 * @param {ChangeResult} result
 * @param {string | null} problem
 */
function showAnswer(root, app, result, problem) {
  const { manifest } = app;
  const { mean, row, top } = result;
  const outputs = /** @type {Outputs} */ (manifest.outputs);
  const tokens = outputs.rows ? manifest.tokens[outputs.rows] : null;
  const moved = mean === null ? "not comparable: somewhere every token is masked"
    : `${formatNumber(mean)} nats apart (KL, mean over the answer)`;
  const remark = h("small", { class: "pale", id: "moved", role: "status" }, problem ? "unchanged" : moved);
  root.append(h("h2", {}, "The answer", remark), answerCards(result));
  if (tokens && result.kl.length > 1) root.append(...positionMap(app, result, tokens, outputs));
  const where = tokens ? `${outputs.kind === "next" ? "after" : "at"} “${label(tokens[row])}”` : "";
  const title = tokens ? `What the model predicts ${where}` : "The predicted class";
  const versus = drawVersus(top, ["before", "after"], title);
  root.append(h("h3", { class: "over" }, title), versus.root);
  return versus;
}

/** @param {ChangeResult} result */
function answerCards({ text, top }) {
  /** @type {(key: "before" | "after") => string | null} */
  const answer = (key) => {
    if (text.before !== null) return text[key];
    const best = top.reduce((a, b) => (b[key] > a[key] ? b : a));
    return `${label(best.word, 40)} · ${formatPercent(best[key])}`;
  };
  const [before, after] = [answer("before"), answer("after")];
  const none = "not generated again: a part of the decoder is that of another answer";
  /** @type {(id: string, words: string | null, changed: boolean) => HTMLElement} */
  const card = (id, words, changed) => h("div", { class: "card" }, h("h3", {}, id),
    h("p", { id, class: words === null ? "pale" : changed ? "changed" : "", dir: "auto" },
      words === null ? none : words || "(nothing)"));
  return h("div", { class: "cards" }, card("before", before, false), card("after", after, after !== before));
}

/**
 * How far apart the predictions are at each position.
 * @type {(app: App, result: ChangeResult, tokens: string[], outputs: Outputs) => HTMLElement[]}
 */
function positionMap(app, { kl, row }, tokens, { kind, rows }) {
  const choose = (/** @type {string | number} */ to) => app.go(rowChanges(app, rows, to), { replace: true });
  const shown = tokens.slice(0, kl.length);
  const map = new Heatmap({
    id: "places", title: "How far apart, at each position", numbers: false,
    rows: ["apart"], columns: shown, shape: [1, kl.length],
    data: Float32Array.from(kl, (x) => (x === null ? Infinity : Math.max(0, x))),
    names: ["", kind === "next" ? "after" : "at"],
    at: [0, row],
    format: (x) => `${formatNumber(x)} nats`,
    open: (_, c) => choose(c),
  });
  const menu = stepMenu(kind === "next" ? "after" : "token", "row", numberTokens(shown), row, choose);
  return [h("div", { class: "controls" }, menu), map.root];
}

/**
 * All heads by the effect of silencing them; nothing is computed before it is asked for.
 * @type {(root: HTMLElement, app: App, silence: Silence) => void}
 */
function showRanking(root, app, silence) {
  const { manifest, state, go, source } = app;
  const count = namedAttentions(manifest).reduce((sum, { heads }) => sum + heads, 0);
  root.append(heading("Which heads matter",
    count ? `each of the ${count} heads silenced alone, on this input` : "this model has none"));
  if (!count || !source.live) return;
  if (state.rank === undefined) {
    const onclick = () => go({ rank: 1 }, { replace: true });
    root.append(h("button", { type: "button", id: "rank", onclick }, `Rank all heads (${count} runs)`));
    return;
  }
  const place = h("div", { id: "ranked" });
  root.append(place);
  const trace = manifest.base ?? manifest.id;
  const effects = ranked.get(trace);
  if (effects) showEffects(place, app, effects, silence);
  else measureHeads(place, app, trace, count, silence);
}

/** @type {Map<string, HeadEffect[]>} */
const ranked = new Map(); // by trace

/**
 * Silence head after head, and say how far it is.
 * @type {(place: HTMLElement, app: App, trace: string, count: number, silence: Silence) => Promise<void>}
 */
async function measureHeads(place, app, trace, count, silence) {
  const { source, go } = app;
  if (!source.live) return;
  const stopper = new AbortController();
  const bar = h("progress", { id: "ranking-progress", max: count, value: 0, "aria-label": "Heads silenced" });
  const words = h("span", { class: "pale", role: "status" }, `Silencing ${count} heads, one after another …`);
  const cancel = h("button", { type: "button", id: "cancel-rank", onclick: () => {
    stopper.abort();
    go({ rank: null }, { replace: true });
  } }, "Cancel");
  place.replaceChildren(h("p", { class: "ranking" }, bar, words, cancel));
  /** @type {HeadEffect[]} */
  const effects = [];
  try {
    for await (const effect of source.lines(`effects?trace=${trace}&stream=1`, null, stopper.signal)) {
      if (effects.length && !place.isConnected) stopper.abort(); // another view is open
      effects.push(effect);
      bar.value = effects.length;
    }
    effects.sort((a, b) => b.kl - a.kl);
    ranked.set(trace, effects);
    showEffects(place, app, effects, silence);
  } catch (error) {
    if (!stopper.signal.aborted) place.replaceChildren(alertBox(messageOf(error)));
  }
}

/** @type {(place: HTMLElement, app: App, effects: HeadEffect[], silence: Silence) => void} */
function showEffects(place, app, effects, silence) {
  const map = effectMap(app.manifest, effects, silence);
  const list = effectTable(app.manifest, effects, silence);
  place.replaceChildren(map.root, h("div", { class: "scroll over" }, list));
  const { canvas, svg } = map.output;
  app.current = { name: "what-if", ...app.current, canvas, svg };
}

/** @type {(manifest: Manifest, effects: HeadEffect[], silence: Silence) => Heatmap} */
function effectMap(manifest, effects, silence) {
  const attentions = namedAttentions(manifest);
  const wide = Math.max(...attentions.map(({ heads }) => heads));
  const data = new Float32Array(attentions.length * wide).fill(NaN);
  for (const { part, head, kl } of effects) {
    data[attentions.findIndex(({ name }) => name === part) * wide + head] = Math.max(0, kl);
  }
  const uneven = attentions.some(({ heads }) => heads < wide);
  /** @type {(r: number, c: number) => string | null} */
  const why = (r, c) => (c < attentions[r].heads ? null : "no such head");
  return new Heatmap({
    id: "effects", title: "How far the answer moves without each head, in nats", numbers: false,
    rows: attentions.map(({ short }) => short), columns: range(wide).map((i) => `head ${i}`),
    data, shape: [attentions.length, wide], names: ["layer", ""],
    format: (x) => `${formatNumber(x)} nats; Enter silences it`,
    limits: [0, Math.max(...effects.map(({ kl }) => kl), 1e-9)],
    why: uneven ? Object.assign(why, { blank: data.map((x) => Number(Number.isNaN(x))) }) : null,
    open: (r, c) => silence(attentions[r].name, c),
  });
}

/** @type {(manifest: Manifest, effects: HeadEffect[], silence: Silence) => HTMLElement} */
function effectTable(manifest, effects, silence) {
  const attentions = namedAttentions(manifest);
  const rows = effects.slice(0, RANKED).map(({ part, head, kl, log_probability: change }, i) => {
    const words = attentions.find(({ name }) => name === part)?.words ?? part;
    const button = {
      type: "button", class: "deeper", "aria-label": `Silence head ${head} of ${part}`,
      onclick: () => silence(part, head),
    };
    return h("tr", {}, h("th", { scope: "row" }, `${i + 1}.`),
      h("td", { class: "left" }, `${words}, head ${head}`),
      h("td", {}, formatNumber(kl)), h("td", {}, formatNumber(change)),
      h("td", {}, h("button", button, "silence")));
  });
  const titles = ["", "head", "KL in nats", "change of the answer's log-probability", ""];
  const caption = effects.length > RANKED ? `The ${RANKED} that matter most` : "Those that matter most first";
  return h("table", { id: "ranking" }, h("caption", {}, caption),
    h("thead", {}, h("tr", {}, titles.map((words, i) =>
      h("th", { scope: "col", class: i === 1 ? "left" : null }, words)))),
    h("tbody", {}, rows));
}
