/* What if: heads that say nothing, other weights, hidden tokens, parts of another input; and what the model says then. */

import { choice, encoded, h, label, number, percent, python, table, tabs, twin } from "./dom.js";
import { grid } from "./grid.js";
import { PARTS } from "./attention.js";

const KINDS = [["silence", "Silence a head"], ["weights", "Edit a row of weights"], ["hide", "Hide a token"], ["take", "Take from another input"]];
const RANKED = 20; // heads in the list
const draft = {}; // what the form was left with

/** Two distributions side by side: {word, before, after} of the likeliest. */
export function versus(top, names, caption) {
  const peak = Math.max(...top.map((one) => Math.max(one.before, one.after)), 1e-30);
  const share = (x, kind) => h("i", { class: kind, style: { width: `${(100 * x) / peak}%` } });
  const change = (x) => (Math.abs(x) < 5e-4 ? "0.0" : `${x < 0 ? "−" : "+"}${(100 * Math.abs(x)).toFixed(1)}`);
  const numbers = () => ({
    head: ["token", names[0], names[1], "difference", `logit ${names[0]}`, `logit ${names[1]}`],
    rows: top.map((one) => [label(one.word, 40), number(one.before), number(one.after), number(one.after - one.before), number(one.logit_before), number(one.logit_after)]),
  });
  const list = h("div", { class: "versus" },
    ["", "", names[0], names[1], "points"].map((words) => h("span", { class: "pale head" }, words)),
    top.flatMap((one) => [
      h("span", { class: "word" }, label(one.word, 28)),
      h("div", { class: "share two", "aria-hidden": "true" }, share(one.before, "was"), share(one.after, "now")),
      h("span", { class: "num" }, percent(one.before)), h("span", { class: "num" }, percent(one.after)),
      h("span", { class: `num ${Math.abs(one.after - one.before) < 5e-4 ? "pale" : ""}` }, change(one.after - one.before))]));
  return { root: h("figure", {}, list, twin(() => table(caption, numbers().head, numbers().rows))), csv: numbers };
}

const listed = (state) => {
  try {
    const found = JSON.parse(state.changes ?? "[]");
    return Array.isArray(found) ? found.filter((one) => one && typeof one === "object") : [];
  } catch {
    return [];
  }
};

/** Every attention with a name that is read, in the order of the page. */
const attentions = ({ attentions: parts }) => Object.entries(parts).flatMap(([part, layers]) =>
  layers.map((one) => ({ ...one, words: `${PARTS[part]} attention, layer ${one.layer}`, short: `${PARTS[part]} ${one.layer}` })));

export const whatif = {
  async show(root, app) {
    const { manifest, state, source, go } = app;
    if (!manifest.outputs) {
      root.append(h("h2", {}, "What if"), h("p", {}, "This model's answer is no choice of words or classes: what changes in it can't be told here."));
      return;
    }
    const changes = listed(state);
    app.current = { name: "what-if", python: (given) => lines(manifest, changes, given) };
    if (!source.live) {
      root.append(h("h2", {}, "What if"), h("p", {}, "To change something, the model itself is needed, and this file holds only its numbers. Open it with regard look; or in Python:"),
        h("pre", { tabindex: "0", id: "lines" }, [...begun(manifest), ...lines(manifest, changes.length ? changes : example(manifest), given(manifest))].join("\n")));
      return;
    }
    let result = null;
    let wrong = null;
    const row = state.row === undefined ? undefined : Number(state.row) | 0;
    try {
      if (changes.some((one) => one.picture) && !app.taken) throw new Error("The other picture is no longer here; choose it again.");
      result = await source.send("change", { changes: changes.map((one) => (one.picture ? { ...one, picture: app.taken } : one)), row });
    } catch (error) {
      wrong = error.message;
      result = await source.send("change", { changes: [], row });
    }
    const set = (next) => go({ changes: next.length ? JSON.stringify(next) : null }, { replace: true });
    root.append(h("h2", {}, "What if", h("small", { class: "pale" }, "changes are made while the model runs; nothing is left of them")),
      form(app, result.patchable, (one) => set([...changes, one])),
      h("ol", { class: "changes", "aria-label": "Changes" }, changes.map((one, i) => h("li", {}, h("span", {}, spoken(app, one)),
        h("button", { type: "button", id: `remove-${i}`, "aria-label": `Remove: ${spoken(app, one)}`, onclick: () => set(changes.filter((_, n) => n !== i)) }, "Remove")))));
    if (wrong) root.append(h("p", { class: "wrong", role: "alert" }, wrong));
    if (!changes.length) root.append(h("p", { class: "pale" }, "Nothing is changed yet: before and after are the same."));
    const told = answer(root, app, result, changes, wrong);
    app.current = { ...app.current, csv: told.csv };
    rank(root, app, changes, set);
  },
};

/** What the model says, before and after. */
function answer(root, app, result, changes, wrong) {
  const { manifest, go } = app;
  const { text, kl, mean, row, top } = result;
  const rows = manifest.outputs.rows ? manifest.tokens[manifest.outputs.rows] : null;
  const moved = mean === null ? "no longer comparable: somewhere nothing is left" : `${number(mean)} nats apart (KL, mean over the answer)`;
  root.append(h("h2", {}, "The answer", h("small", { class: "pale", id: "moved", role: "status" }, wrong ? "as it is" : moved)));
  const best = (key) => top.reduce((a, b) => (b[key] > a[key] ? b : a));
  const words = (said, key) => (text.before !== null ? said : `${label(best(key).word, 40)} · ${percent(best(key)[key])}`);
  const none = "not written anew: a part of the decoder is that of another answer";
  const card = (title, said, id, other) => h("div", { class: "card" }, h("h3", {}, title),
    h("p", { id, class: said === null ? "pale" : other && said !== other ? "changed" : "", dir: "auto" }, said === null ? none : said === "" ? "(nothing)" : said));
  const before = words(text.before, "before");
  root.append(h("div", { class: "cards" }, card("before", before, "before"), card("after", words(text.after, "after"), "after", before)));
  if (rows && kl.length > 1) {
    const made = grid({
      rows: ["apart"], columns: rows.slice(0, kl.length), numbers: false, data: Float32Array.from(kl, (x) => (x === null ? Infinity : Math.max(0, x))), shape: [1, kl.length], id: "places",
      title: "How far apart, at each place", names: ["", manifest.outputs.kind === "next" ? "after" : "at"], at: [0, row],
      say: (x) => `${number(x)} nats`, open: (_, c) => go({ row: c }, { replace: true }),
    });
    root.append(h("div", { class: "controls" }, choice(manifest.outputs.kind === "next" ? "after" : "token", "row", rows.slice(0, kl.length).map((word, i) => [i, `${i} ${label(word)}`]), row, (to) => go({ row: to }, { replace: true }))), made.root);
  }
  const place = rows ? (manifest.outputs.kind === "next" ? `What comes after “${label(rows[row])}”` : `What stands at “${label(rows[row])}”`) : "What it is taken for";
  const drawn = versus(top, ["before", "after"], place);
  root.append(h("h3", { class: "over" }, place), drawn.root);
  return drawn;
}

/** What can be changed: one form for each kind. */
function form(app, patchable, add) {
  const { manifest, state, go } = app;
  const looks = attentions(manifest);
  const side = manifest.tokens.text ?? manifest.tokens.source ?? [];
  const kinds = KINDS.filter(([kind]) => (kind === "take" ? patchable.length : looks.length && (kind !== "hide" || side.length)));
  if (!kinds.length) return h("p", {}, "This model has no attention, and no part that could be another input's.");
  const kind = kinds.some(([name]) => name === state.what) ? state.what : kinds[0][0];
  const options = (values, chosen) => values.map(([value, words]) => h("option", { value, selected: String(value) === String(chosen) }, words));
  const pick = (words, id, values, onchange) => {
    const menu = h("select", { id, onchange: () => { draft[id] = menu.value; onchange?.(); } }, options(values, draft[id]));
    return { root: h("span", { class: "choice" }, h("label", { for: id }, words), menu), get value() { return menu.value; }, menu };
  };
  const tokens = (words) => words.map((word, i) => [i, `${i} ${label(word)}`]);
  const fields = h("span", { class: "fields" });
  let made = () => null;
  if (kind === "silence" || kind === "weights") {
    const part = pick("in", "change-part", looks.map((one) => [one.name, one.words]), () => fill());
    const head = pick("head", "change-head", []);
    const query = pick("query", "change-query", []);
    const to = pick("looks", "change-to", [], () => { own.hidden = to.value !== "own"; });
    const own = h("input", { type: "text", id: "change-weights", "aria-label": "Weights, one for each key", placeholder: "0.5 0 0.5 …", value: draft.weights ?? "", autocomplete: "off", onchange: () => { draft.weights = own.value; } });
    const fill = () => {
      const one = looks.find(({ name }) => name === part.value) ?? looks[0];
      const [rows, columns] = [manifest.tokens[one.rows], manifest.tokens[one.columns]];
      head.menu.replaceChildren(...options(Array.from({ length: one.heads }, (_, i) => [i, i]), draft["change-head"]));
      query.menu.replaceChildren(...options(tokens(rows.slice(0, manifest.tensors[`${one.name}.weights`].shape[1])), draft["change-query"]));
      to.menu.replaceChildren(...options([["even", "evenly at all it may"], ...tokens(columns).map(([i, word]) => [i, `only at ${word}`]), ["own", "as given …"]], draft["change-to"]));
      own.hidden = to.value !== "own";
    };
    fill();
    fields.append(part.root, head.root, ...(kind === "weights" ? [query.root, to.root, own] : []));
    made = () => (kind === "silence" ? { kind, part: part.value, head: Number(head.value) }
      : { kind, part: part.value, head: Number(head.value), query: Number(query.value), to: to.value === "even" ? "even" : to.value === "own" ? own.value.split(/[\s,;]+/).filter(Boolean).map(Number) : Number(to.value) });
  } else if (kind === "hide") {
    const token = pick("token", "change-token", tokens(side));
    fields.append(token.root);
    made = () => ({ kind, token: Number(token.value) });
  } else {
    const part = pick("output of", "change-take", patchable.map((name) => [name, name]), () => fill());
    const at = pick("at", "change-at", []);
    const words = (name) => manifest.tokens[manifest.tensors[name].rows] ?? [];
    const fill = () => at.menu.replaceChildren(...options([["", "all tokens"], ...tokens(words(part.value))], draft["change-at"]));
    fill();
    const sees = manifest.model.sees;
    const other = sees ? h("input", { type: "file", id: "change-file", accept: "image/png,image/jpeg,image/webp", "aria-label": "Another picture" })
      : h("input", { type: "text", id: "change-input", "aria-label": "Another input", placeholder: "another input", value: draft.input ?? manifest.input, autocomplete: "off", dir: "auto", oninput: () => { draft.input = other.value; } });
    fields.append(part.root, at.root, other);
    made = async () => {
      const found = { kind, part: part.value, ...(at.value === "" ? {} : { at: Number(at.value) }) };
      if (!sees) return { ...found, input: other.value };
      if (!other.files[0]) return null;
      app.taken = await encoded(other.files[0]);
      return { ...found, picture: true };
    };
  }
  return h("div", { class: "change" }, h("div", { class: "controls" }, tabs("what", kinds, kind, (to) => go({ what: to }, { replace: true }))),
    h("form", { class: "controls", onsubmit: async (event) => {
      event.preventDefault();
      const one = await made();
      if (one) add(one);
    } }, fields, h("button", { type: "submit", id: "add" }, "Change it")));
}

/** A change in words. */
function spoken({ manifest }, one) {
  const part = attentions(manifest).find(({ name }) => name === one.part);
  const where = part ? part.words[0].toLowerCase() + part.words.slice(1) : label(one.part, 40);
  const word = (side, i) => `“${label((manifest.tokens[side] ?? [])[i] ?? "?")}” (${label(i, 8)})`;
  if (one.kind === "silence") return `Head ${label(one.head, 8)} of ${where} says nothing`;
  if (one.kind === "hide") return `Nothing may look at ${word(manifest.tokens.text ? "text" : "source", one.token)}`;
  if (one.kind === "take") return `${label(one.part, 60)}${one.at === undefined ? "" : ` of ${word(manifest.tensors[one.part]?.rows, one.at)}`} is that of ${one.picture ? "another picture" : `“${label(one.input, 40)}”`}`;
  const to = Array.isArray(one.to) ? `with ${label(one.to.join(" "), 40)}` : one.to === "even" ? "evenly" : `only at ${word(part?.columns, one.to)}`;
  return `Head ${label(one.head, 8)} of ${where}: ${word(part?.rows, one.query)} looks ${to}`;
}

/** All heads by what their silence does: nothing is computed before it is asked for. */
function rank(root, app, changes, set) {
  const { manifest, state, go, source } = app;
  const looks = attentions(manifest);
  const many = looks.reduce((sum, one) => sum + one.heads, 0);
  root.append(h("h2", {}, "Which heads matter", h("small", { class: "pale" }, many ? `each of the ${many} heads silenced alone, on this input` : "this model has none")));
  if (!many) return;
  if (state.rank === undefined) {
    root.append(h("button", { type: "button", id: "rank", onclick: () => go({ rank: 1 }, { replace: true }) }, `Rank all heads (${many} runs)`));
    return;
  }
  const spot = h("div", { id: "ranked" }, h("p", { class: "pale", role: "status" }, `Silencing ${many} heads, one after another …`));
  root.append(spot);
  source.get("effects").then((found) => {
    const wide = Math.max(...looks.map((one) => one.heads));
    const data = new Float32Array(looks.length * wide).fill(NaN);
    for (const { part, head, kl } of found) data[looks.findIndex(({ name }) => name === part) * wide + head] = Math.max(0, kl);
    const missing = looks.some((one) => one.heads < wide);
    const add = (part, head) => set([...changes, { kind: "silence", part, head }]);
    const made = grid({
      rows: looks.map((one) => one.short), columns: Array.from({ length: wide }, (_, i) => `head ${i}`), data, shape: [looks.length, wide], id: "effects",
      title: "How far the answer moves without each head, in nats", names: ["layer", ""], numbers: false, say: (x) => `${number(x)} nats; Enter silences it`,
      range: [0, Math.max(...found.map(({ kl }) => kl), 1e-9)],
      why: missing ? Object.assign((r, c) => (c < looks[r].heads ? null : "no such head"), { blank: data.map((x) => Number(Number.isNaN(x))) }) : null,
      open: (r, c) => add(looks[r].name, c),
    });
    const body = found.slice(0, RANKED).map(({ part, head, kl, log_probability: likelier }, i) => h("tr", {},
      h("th", { scope: "row" }, `${i + 1}.`), h("td", { class: "left" }, `${looks.find(({ name }) => name === part)?.words ?? part}, head ${head}`), h("td", {}, number(kl)), h("td", {}, number(likelier)),
      h("td", {}, h("button", { type: "button", class: "deeper", "aria-label": `Silence head ${head} of ${part}`, onclick: () => add(part, head) }, "silence"))));
    const list = h("table", { id: "ranking" }, h("caption", {}, found.length > RANKED ? `The ${RANKED} that matter most` : "Those first that matter most"),
      h("thead", {}, h("tr", {}, ["", "head", "KL in nats", "answer's log-probability", ""].map((word, i) => h("th", { scope: "col", class: i === 1 ? "left" : null }, word)))), h("tbody", {}, body));
    spot.replaceChildren(made.root, h("div", { class: "scroll over" }, list));
    app.current = { ...app.current, canvas: made.canvas, svg: made.svg };
  }).catch((error) => spot.replaceChildren(h("p", { class: "wrong", role: "alert" }, error.message)));
}

const example = (manifest) => {
  const one = attentions(manifest)[0];
  return one ? [{ kind: "silence", part: one.name, head: 0 }] : [];
};

/** How Python lines begin, and what they give to the model. */
export const begun = (manifest) => ["import regard", "", `model = regard.load(${python(manifest.model.name ?? "RUN")})`];
export function given({ input, answer, tokens, model }) {
  if (input === null) return '"picture.png"';
  return tokens.written && answer !== null && model.task !== "classify" ? `(${python(input)}, ${python(answer)})` : python(input);
}

/** The same in Python. */
function lines(manifest, changes, input) {
  const silence = {};
  const values = [];
  const hide = changes.filter(({ kind }) => kind === "hide").map(({ token }) => token);
  for (const { kind, part, head } of changes) if (kind === "silence") (silence[part] ??= []).push(head);
  changes.filter(({ kind }) => kind === "weights").forEach((one) => {
    const to = Array.isArray(one.to) ? `torch.tensor([${one.to.join(", ")}])` : one.to === "even" ? `(x[${one.head}, ${one.query}] > 0).float()` : `torch.eye(x.shape[-1])[${one.to}]`;
    values.push([`${one.part}.weights`, [`    new = ${to}`, `    x[${one.head}, ${one.query}] = new / new.sum()`]]);
  });
  const taken = changes.filter(({ kind }) => kind === "take").map((one, i) => {
    values.push([one.part, one.at === undefined ? [`    x[:] = other_${i}`] : [`    x[${one.at}] = other_${i}[${one.at}]`]]);
    return `other_${i} = regard.trace(model, ${one.picture ? '"other.png"' : python(one.input ?? "")})[${python(one.part)}]`;
  });
  const byName = Map.groupBy ? Map.groupBy(values, ([name]) => name) : values.reduce((all, one) => all.set(one[0], [...(all.get(one[0]) ?? []), one]), new Map());
  const functions = [...byName].map(([name, some], i) => [name, `changed_${i}`, [`def changed_${i}(x):`, "    x = x.clone()", ...some.flatMap(([, body]) => body), "    return x", ""]]);
  const told = [
    functions.length ? `values={${functions.map(([name, f]) => `${python(name)}: ${f}`).join(", ")}}` : null,
    Object.keys(silence).length ? `silence=${JSON.stringify(silence)}` : null,
    hide.length ? `hide=[${hide.join(", ")}]` : null,
  ].filter(Boolean).join(", ");
  return [...(functions.some(([, , body]) => body.some((line) => line.includes("torch."))) ? ["import torch"] : []), ...taken, ...functions.flatMap(([, , body]) => ["", ...body]),
    `with regard.change(model${told ? `, ${told}` : ""}):`, `    changed = regard.trace(model, ${input})`, `changed["${manifest.tensors.probabilities ? "probabilities" : "logits"}"]`, `regard.effects(model, ${input})  # all heads, by what their silence does`];
}
