/* The page: what is looked at is in the address, so that a link opens the same view again. */

import { choice, encoded, folder, h, label } from "./dom.js";
import { Saved, Server } from "./source.js";
import { attention } from "./attention.js";

const OUTPUTS = { next: "Next token", fill: "Words", classes: "Classes" };
const looks = ({ manifest }, part) => Object.keys(manifest.attentions).some((name) => !part || name === part);

// Each with its title, whether a model has it, and where it is: only the first is there from the start.
const VIEWS = [
  ["attention", "Attention", (app) => looks(app), async () => ({ attention })],
  ["alignment", "Alignment", (app) => looks(app, "cross") && !app.manifest.grid, () => import("./alignment.js")],
  ["picture", "Picture", (app) => looks(app) && app.manifest.grid, () => import("./picture.js")],
  ["walk", "Walk", () => true, () => import("./walk.js")],
  ["map", "Map", () => true, () => import("./map.js")],
  ["next", ({ manifest }) => OUTPUTS[manifest.outputs.kind], ({ manifest }) => manifest.outputs, () => import("./next.js")],
  ["space", "Space", () => true, () => import("./space.js")],
  ["whatif", "What if", () => true, () => import("./whatif.js")],
  ["compare", "Compare", () => true, () => import("./compare.js")],
  ["talk", "Talk", ({ source, manifest }) => source.live && !manifest.model.sees, () => import("./talk.js")],
  ["training", "Training", ({ manifest }) => manifest.logged, () => import("./training.js")],
  ["take", "Take away", () => true, () => import("./take.js")],
].map(([name, title, applies, load]) => ({ name, applies, load, title: (app) => (typeof title === "string" ? title : title(app)) }));

const byId = (id) => document.getElementById(id);
const kept = byId("kept");
const source = kept ? new Saved(JSON.parse(kept.textContent)) : new Server();
const framed = location.protocol === "about:"; // in a notebook's frame: no address could hold anything

const app = {
  source,
  manifest: null,
  state: {}, // what the address says
  current: null, // what can be taken away: {name, canvas, svg, csv}
  dropped: null, // a picture that was given to the page, which no address holds
  go,
};

function read() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

/** Change what is looked at; null forgets. `quiet`: the view has drawn it itself. */
function go(changes, { quiet = false, replace = quiet } = {}) {
  const state = { ...app.state };
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") delete state[name];
    else state[name] = String(value);
  }
  const address = `#${new URLSearchParams(state)}`;
  app.state = state;
  if (!framed && address !== location.hash) history[replace ? "replaceState" : "pushState"](null, "", address);
  if (!quiet) show();
}

const asked = (state) => JSON.stringify([state.input, state.answer, state.layers, state.checkpoint]);
let traced = null;
let turn = 0;

/** Draw the address. A later call overtakes an earlier one that still waits for numbers. */
async function show() {
  const mine = ++turn;
  const main = byId("main");
  try {
    if (traced !== asked(app.state)) {
      main.setAttribute("aria-busy", "true");
      const { input, answer, layers, checkpoint } = app.state;
      const wanted = asked(app.state);
      app.manifest = await source.trace({ input, answer, layers: layers?.split(",").map(Number), checkpoint: checkpoint === undefined ? undefined : Number(checkpoint), picture: app.dropped ?? undefined });
      if (mine !== turn) return;
      traced = wanted;
      frame();
    }
    const views = VIEWS.filter((view) => view.applies(app));
    const view = views.find((one) => one.name === app.state.view) ?? views[0];
    nav(views, view);
    const drawer = (await view.load())[view.name];
    const focused = document.activeElement?.id;
    if (view.name !== "take") app.current = null;
    const root = h("section", { class: view.name, "aria-label": view.title(app) });
    await drawer.show(root, app);
    if (mine !== turn) return;
    app.view = drawer;
    main.replaceChildren(root);
    if (focused && focused !== "main") byId(focused)?.focus({ preventScroll: true });
    document.title = `${view.title(app)} · Regard`;
  } catch (error) {
    if (mine !== turn) return;
    const back = traced && !framed ? h("button", { type: "button", onclick: () => history.back() }, "Back") : null;
    main.replaceChildren(h("p", { class: "wrong", role: "alert" }, error.message), ...(back ? [back] : []));
  } finally {
    if (mine === turn) main.removeAttribute("aria-busy");
  }
}

function nav(views, chosen) {
  byId("views").replaceChildren(...views.map((view) => h("a", {
    href: `#${new URLSearchParams({ ...app.state, view: view.name })}`,
    id: `view-${view.name}`,
    "aria-current": view === chosen ? "page" : null,
    onclick: (event) => {
      if (event.metaKey || event.ctrlKey) return;
      event.preventDefault();
      go({ view: view.name });
    },
  }, view.title(app))));
  byId("views").querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

/** What stands around the view: the model's name, the input, and how far open and fast path differ. */
function frame() {
  const { model, input, answer, difference, step, steps } = app.manifest;
  const focused = document.activeElement?.id;
  const when = [...steps.map((n) => [n, `step ${n.toLocaleString("en")}`]), ["", "the final one"]];
  const at = step === null ? "" : h("span", { class: "pale" }, `at step ${step.toLocaleString("en")}`);
  byId("run").replaceChildren(source.live && steps.length ? choice("checkpoint", "checkpoint", when, step ?? "", (to) => go({ checkpoint: to, cell: null }, { replace: true })) : at);
  if (focused?.startsWith("checkpoint")) byId(focused)?.focus();
  byId("model").textContent = `${model.name === null ? "" : `${folder(model.name)} · `}${model.class}, ${model.parameters.toLocaleString("en")} parameters`;
  const exact = difference === 0 ? "bit for bit the same" : `at most ${difference.toExponential(1)} apart`;
  byId("difference").textContent = difference === null ? "" : `What heads give by the fast path and by the open one shown here: ${exact}.`;
  byId("difference").dataset.value = difference;
  const form = byId("ask");
  const said = answer ? h("span", { class: "answer", title: answer }, `→ ${label(answer, 60)}`) : null;
  if (model.sees || !source.live) {
    const what = model.sees ? null : h("q", { class: "input" }, label(input, 60));
    const file = h("input", { type: "file", accept: "image/png,image/jpeg,image/webp", id: "file", class: "unseen", onchange: () => drop(file.files[0]) });
    form.replaceChildren(...[what, said, ...(model.sees && source.live ? [h("label", { for: "file", class: "button" }, "Another picture …"), file] : [])].filter(Boolean));
    return;
  }
  const field = h("input", { type: "text", id: "input", "aria-label": "Input", value: input, autocomplete: "off", spellcheck: "false", dir: "auto" });
  form.replaceChildren(...[field, h("button", { type: "submit" }, "Look"), said].filter(Boolean));
  form.onsubmit = (event) => {
    event.preventDefault();
    go({ input: field.value, answer: null, at: null, cell: null, row: null });
  };
}

/** A picture from the user's disk. */
async function drop(file) {
  if (!file) return;
  app.dropped = await encoded(file);
  traced = null;
  go({ at: null, cell: null, answer: null });
}

const KEYS = [
  ["arrow keys", "move over a matrix, or between tabs"],
  ["Enter", "open the sum behind a number, or the head in the atlas"],
  ["n, p", "next and previous: the head, the step of the walk, the point of a map"],
  ["j, k", "next and previous layer"],
  ["1 … 9", "the views, in order"],
  ["/", "to the input"],
  ["Escape", "close"],
];

function help() {
  const dialog = h("dialog", { "aria-label": "Keys", onclose: () => dialog.remove() }, h("h2", {}, "Keys"),
    h("dl", {}, KEYS.map(([key, does]) => [h("dt", {}, key), h("dd", {}, does)])),
    h("form", { method: "dialog" }, h("button", {}, "Close")));
  document.body.append(dialog);
  dialog.showModal();
}

document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || document.querySelector("dialog[open]")) return;
  if (event.target.closest?.("input, select, textarea")) return;
  if (event.key === "?") help();
  else if (event.key === "/") byId("input")?.focus();
  else if (/^[1-9]$/.test(event.key)) byId("views").children[event.key - 1]?.click();
  else if (!app.view?.key?.(event.key, app)) return;
  event.preventDefault();
});
byId("skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("main").focus();
});
window.addEventListener("popstate", () => {
  app.state = read();
  show();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
app.state = location.hash.length > 1 || source.live ? read() : source.kept.state;
show();
