/* The changes of What if: the form that adds one, how one is read, and the same in Python. */

import { fileKind, h, label, numberMenu, numberTokens, pythonString, tabs, toBase64 } from "./dom.js";
import { textField } from "./input.js";
import { PART_TITLES, attentionParts, selectHead, selectedToken } from "./selection.js";

/** @type {[Change["kind"], string][]} */
const KINDS = [
  ["silence", "Silence a head"], ["weights", "Edit a row of weights"], ["hide", "Hide a token"],
  ["take", "Take from another input"],
];

/** @typedef {AttentionInfo & { words: string, short: string }} NamedAttention */
/** @typedef {[value: string | number, words: string | number][]} Options */

/** What a form shows, and the change that it makes; null if something is missing.
 * @typedef {{ fields: Child, read: () => Change | null | Promise<Change | null> }} ChangeForm */

/** @type {Record<string, string>} */
const draft = {}; // what the forms were left with

/**
 * Every attention with its name in words.
 * @param {Manifest} manifest
 * @returns {NamedAttention[]}
 */
export const namedAttentions = (manifest) => attentionParts(manifest).flatMap((part) =>
  (manifest.attentions[part] ?? []).map((attention) => ({
    ...attention,
    words: `${PART_TITLES[part]} attention, layer ${attention.layer}`,
    short: `${PART_TITLES[part]} ${attention.layer}`,
  })));

/** @type {(values: Options, chosen: string | undefined) => HTMLElement[]} */
const optionList = (values, chosen) => values.map(([value, words]) =>
  h("option", { value, selected: String(value) === chosen }, words));

/**
 * A menu that remembers its choice.
 * @param {string} words
 * @param {string} id
 * @param {Options} values
 * @param {() => void} [changed]
 * @param {string | number | null} [usual] what is chosen at first
 */
function draftMenu(words, id, values, changed, usual = null) {
  const chosen = () => draft[id] ?? (usual === null ? undefined : String(usual));
  const menu = h("select", { id, onchange: () => {
    draft[id] = menu.value;
    changed?.();
  } }, optionList(values, chosen()));
  return {
    root: h("span", { class: "choice" }, h("label", { for: id }, words), menu),
    value: () => menu.value,
    fill: (/** @type {Options} */ options) => menu.replaceChildren(...optionList(options, chosen())),
  };
}

/**
 * A form for each kind of change.
 * @param {App} app
 * @param {string[]} patchable names of tensors that can be taken from another input
 * @param {(change: Change) => void} add
 */
export function changeForm(app, patchable, add) {
  const { manifest, state, go } = app;
  const hasAttention = namedAttentions(manifest).length > 0;
  const tokens = manifest.tokens.text ?? manifest.tokens.source ?? [];
  const kinds = KINDS.filter(([kind]) => {
    if (kind === "take") return patchable.length;
    return hasAttention && (kind !== "hide" || tokens.length);
  });
  if (!kinds.length) return h("p", {}, "This model has nothing that can be changed here.");
  const kind = kinds.find(([name]) => name === state.what)?.[0] ?? kinds[0][0];
  const forms = {
    silence: () => attentionForm(app, "silence"),
    weights: () => attentionForm(app, "weights"),
    hide: () => hideForm(tokens, selectedToken(app, manifest.tokens.text ? "text" : "source")),
    take: () => takeForm(app, patchable),
  };
  const { fields, read } = forms[kind]();
  const onsubmit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const change = await read();
    if (change) add(change);
  };
  return h("div", { class: "change" },
    h("div", { class: "controls" }, tabs("what", kinds, kind, (to) => go({ what: to }, { replace: true }))),
    h("form", { class: "controls", onsubmit }, h("span", { class: "fields" }, fields),
      h("button", { type: "submit", id: "add" }, "Change it")));
}

/** Begins with what is selected. @type {(app: App, kind: "silence" | "weights") => ChangeForm} */
function attentionForm(app, kind) {
  const { manifest } = app;
  const attentions = namedAttentions(manifest);
  const { attention: chosen, head: chosenHead } = selectHead(app);
  const parts = attentions.map(({ name, words }) => /** @type {[string, string]} */ ([name, words]));
  const part = draftMenu("in", "change-part", parts, () => fill(), chosen.name);
  const head = draftMenu("head", "change-head", [], undefined, chosenHead);
  const query = draftMenu("query", "change-query", [], undefined, selectedToken(app, chosen.rows));
  const to = draftMenu("looks", "change-to", [], () => showOwn());
  const own = h("input", {
    type: "text", id: "change-weights", "aria-label": "Weights, one for each key",
    placeholder: "0.5 0 0.5 …", value: draft.weights ?? "", autocomplete: "off",
    onchange: () => { draft.weights = own.value; },
  });
  const showOwn = () => { own.hidden = to.value() !== "own"; };
  const fill = () => {
    const selected = attentions.find(({ name }) => name === part.value()) ?? attentions[0];
    const { name, rows, columns, heads } = selected;
    const queries = manifest.tokens[rows].slice(0, manifest.tensors[`${name}.weights`].shape[1]);
    head.fill(numberMenu(heads));
    query.fill(numberTokens(queries));
    /** @type {Options} */
    const keys = numberTokens(manifest.tokens[columns]).map(([i, words]) => [i, `only at ${words}`]);
    to.fill([["even", "evenly at all it may"], ...keys, ["own", "with these weights …"]]);
    showOwn();
  };
  fill();
  /** @returns {Change["to"]} */
  const target = () => {
    if (to.value() === "even") return "even";
    return to.value() === "own" ? own.value.split(/[\s,;]+/).filter(Boolean).map(Number) : Number(to.value());
  };
  return {
    fields: [part.root, head.root, kind === "weights" ? [query.root, to.root, own] : null],
    read() {
      const change = { kind, part: part.value(), head: Number(head.value()) };
      return kind === "silence" ? change : { ...change, query: Number(query.value()), to: target() };
    },
  };
}

/** @type {(tokens: string[], usual: number | null) => ChangeForm} */
function hideForm(tokens, usual) {
  const token = draftMenu("token", "change-token", numberTokens(tokens), undefined, usual);
  return { fields: token.root, read: () => ({ kind: "hide", token: Number(token.value()) }) };
}

/** @type {(app: App, patchable: string[]) => ChangeForm} */
function takeForm(app, patchable) {
  const { manifest } = app;
  const part = draftMenu("output of", "change-take", patchable.map((name) => [name, name]), () => fill());
  const at = draftMenu("at", "change-at", []);
  const fill = () => {
    const tokens = manifest.tokens[manifest.tensors[part.value()].rows ?? ""] ?? [];
    at.fill([["", "all tokens"], ...numberTokens(tokens)]);
  };
  fill();
  const { sees } = manifest.model;
  const { accept, noun } = fileKind(manifest.model);
  const other = sees
    ? h("input", {
      type: "file", id: "change-file", accept, "aria-label": `Another ${noun}`,
    })
    : textField("change-input", "Another input", draft.input ?? manifest.input ?? "", {
      placeholder: "another input", onchange: () => { draft.input = other.value; },
    });
  return {
    fields: [part.root, at.root, other],
    async read() {
      const place = at.value() === "" ? {} : { at: Number(at.value()) };
      const change = { kind: /** @type {const} */ ("take"), part: part.value(), ...place };
      if (!sees) return { ...change, input: other.value };
      const file = other instanceof HTMLInputElement ? other.files?.[0] : null;
      if (!file) return null;
      app.taken = await toBase64(file);
      return { ...change, picture: true };
    },
  };
}

/**
 * A change in words.
 * @param {Manifest} manifest
 * @param {Change} change
 */
export function describeChange(manifest, change) {
  const { kind, part, head, query, to, weight, token, at, input, picture } = change;
  const attention = namedAttentions(manifest).find(({ name }) => name === part);
  const where = attention ? attention.words[0].toLowerCase() + attention.words.slice(1) : label(part, 40);
  /** @type {(side: string | null | undefined, i: unknown) => string} */
  const word = (side, i) => `“${label(manifest.tokens[side ?? ""]?.[Number(i)] ?? "?")}” (${label(i, 8)})`;
  if (kind === "silence") return `Head ${label(head, 8)} of ${where} is silenced`;
  if (kind === "hide") return `No token may look at ${word(manifest.tokens.text ? "text" : "source", token)}`;
  if (kind === "take") {
    const place = at === undefined ? "" : ` of ${word(manifest.tensors[part ?? ""]?.rows, at)}`;
    const from = picture ? `another ${fileKind(manifest.model).noun}` : `“${label(input, 40)}”`;
    return `${label(part, 60)}${place} is taken from ${from}`;
  }
  const share = weight === undefined ? "" : ` with ${label(weight, 8)}`;
  const how = Array.isArray(to) ? `with ${label(to.join(" "), 40)}` : to === "even" ? "evenly"
    : `${share ? "" : "only "}at ${word(attention?.columns, to)}${share}`;
  return `Head ${label(head, 8)} of ${where}: ${word(attention?.rows, query)} looks ${how}`;
}

/**
 * The body of a function that changes a tensor x in Python.
 * @param {Change} change
 * @param {string} other the name of what is taken from another input
 */
function changeBody({ kind, head, query, to, weight, at }, other) {
  if (kind === "take") return at === undefined ? [`    x[:] = ${other}`] : [`    x[${at}] = ${other}[${at}]`];
  const row = `x[${head}, ${query}]`;
  if (weight !== undefined) { // of one key; the others share the rest as before
    const rest = `    ${row} *= ${1 - weight} / ${row}.sum()`;
    return [`    ${row}[${to}] = 0`, rest, `    ${row}[${to}] = ${weight}`];
  }
  const weights = Array.isArray(to) ? `torch.tensor([${to.join(", ")}])`
    : to === "even" ? `(${row} > 0).float()` : `torch.eye(x.shape[-1])[${to}]`;
  return [`    new = ${weights}`, `    ${row} = new / new.sum()`];
}

/**
 * The same changes in Python.
 * @param {Manifest} manifest
 * @param {Change[]} changes
 * @param {string} input
 */
export function changeLines(manifest, changes, input) {
  /** @type {Record<string, number[]>} */
  const silence = {};
  for (const { kind, part, head } of changes) {
    if (kind === "silence") (silence[part ?? ""] ??= []).push(Number(head));
  }
  const hide = changes.filter(({ kind }) => kind === "hide").map(({ token }) => token);
  const taken = changes.filter(({ kind }) => kind === "take");
  const otherRuns = taken.map((change, i) => {
    const file = `"other.${fileKind(manifest.model).suffix}"`;
    const from = change.picture ? file : pythonString(change.input ?? "");
    return `other_${i} = regard.trace(model, ${from})[${pythonString(change.part ?? "")}]`;
  });
  /** @type {Map<string, string[]>} */
  const bodies = new Map(); // by the name of the tensor that is changed
  for (const change of changes.filter(({ kind }) => kind === "weights" || kind === "take")) {
    const name = change.kind === "weights" ? `${change.part}.weights` : change.part ?? "";
    const body = changeBody(change, `other_${taken.indexOf(change)}`);
    bodies.set(name, [...(bodies.get(name) ?? []), ...body]);
  }
  const functions = [...bodies.values()].map((body, i) =>
    ["", `def changed_${i}(x):`, "    x = x.clone()", ...body, "    return x", ""]);
  const values = [...bodies.keys()].map((name, i) => `${pythonString(name)}: changed_${i}`);
  const options = [
    values.length ? `, values={${values.join(", ")}}` : "",
    Object.keys(silence).length ? `, silence=${JSON.stringify(silence)}` : "",
    hide.length ? `, hide=[${hide.join(", ")}]` : "",
  ].join("");
  return [
    ...(functions.flat().some((line) => line.includes("torch.")) ? ["import torch"] : []),
    ...otherRuns, ...functions.flat(),
    `with regard.change(model${options}):`,
    `    changed = regard.trace(model, ${input})`,
    `changed["${manifest.tensors.probabilities ? "probabilities" : "logits"}"]`,
    `regard.effects(model, ${input})  # all heads, by the effect of silencing them`];
}
