/* Talk with the model: answers come token by token, and every token opens as it was computed. */

import { themeColour } from "./colour.js";
import { alertBox, h, label, messageOf, pythonString, s, svgRoot } from "./dom.js";
import { heading } from "./selection.js";

/** @type {Record<string, string>} */
const VERBS = {
  write: "Go on", translate: "Translate", chat: "Say", fill: "Fill", restore: "Restore", classify: "Classify",
  tag: "Tag", span: "Find", embed: "Embed", words: "Ask",
};

/**
 * The conversation as a drawing.
 * @param {Turn[]} turns
 */
function drawTalk(turns) {
  const lines = turns.flatMap(({ input, output }) => [[input, "--pale"], [output, "--ink"]])
    .flatMap(([text, colour]) =>
      text.split("\n").flatMap((line) => line.match(/.{1,84}(?:\s|$)|.{1,84}/gu) ?? [" "])
        .map((line) => [line, colour]));
  return svgRoot(720, 22 * lines.length + 16, { "font-size": 14 }, lines.map(([line, colour], i) =>
    s("text", { x: 10, y: 24 + 22 * i, fill: themeColour(colour) }, label(line, 200))));
}

/** @type {AbortController | null} what answers at the moment, in whichever view one is */
let answering = null;

/** @type {View} */
export const talk = {
  show(root, app) {
    const { manifest, source } = app;
    const { task, talks } = manifest.model;
    const turns = app.talked ?? [];
    app.talked = turns;
    const field = h("textarea", { id: "asked", "aria-label": "Your text", dir: "auto" });
    if (!turns.length) field.value = manifest.input ?? "";
    else if (!talks) field.value = turns[turns.length - 1].input;
    const list = h("div", { class: "turns", role: "log", "aria-label": "The conversation" },
      turns.map((turn) => showTurn(app, turn)));
    const problem = h("div");
    const stop = h("button", { type: "button", id: "stop", hidden: answering === null,
      onclick: () => answering?.abort() }, "Stop");
    const clear = h("button", { type: "button", id: "clear", hidden: turns.length === 0, onclick: () => {
      answering?.abort();
      app.talked = [];
      app.go({}, { replace: true });
    } }, talks ? "New conversation" : "Clear");
    const ask = async (/** @type {Event} */ event) => {
      event.preventDefault();
      if (!source.live || field.value.trim() === "") {
        problem.replaceChildren(alertBox("Write something first."));
        return;
      }
      problem.replaceChildren();
      answering?.abort();
      const mine = new AbortController();
      answering = mine;
      stop.hidden = false;
      const before = talks ? turns.flatMap(({ input, output }) => [input, output]) : [];
      const turn = /** @type {Turn} */ ({ input: field.value, output: "", pieces: [] });
      if (talks) field.value = "";
      await answer(app, turn, before, mine, list, problem);
      if (answering === mine) answering = null;
      stop.hidden = answering === null;
      clear.hidden = turns.length === 0;
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) ask(event);
    });
    takeAway(app, turns);
    root.append(heading("Ask the model", talks ? "it remembers what was said" : `its task: ${task}`),
      talks ? list : "",
      h("form", { onsubmit: ask }, field,
        h("button", { type: "submit", id: "say" }, VERBS[talks ? "chat" : task] ?? "Ask"),
        " ", stop, " ", clear,
        h("small", { class: "pale" }, "  Enter sends, Shift+Enter starts a new line")),
      problem, talks ? "" : list);
  },
};

/**
 * Ask, and show what comes.
 * @param {App} app
 * @param {Turn} turn
 * @param {string[]} before what was said before
 * @param {AbortController} stopper
 * @param {HTMLElement} list
 * @param {HTMLElement} problem
 */
async function answer(app, turn, before, stopper, list, problem) {
  const { manifest, source } = app;
  if (!source.live) return;
  const turns = app.talked ?? [];
  const { step, models, chosen } = manifest;
  const model = chosen ? models?.[chosen] : undefined;
  const text = h("span");
  const box = h("div", { "aria-busy": "true" }, ...(manifest.model.talks
    ? [h("p", { class: "asked" }, turn.input)] : []), h("div", { class: "saying" }, text));
  if (manifest.model.talks) list.append(box);
  else list.prepend(box);
  try {
    const body = { turns: [...before, turn.input], checkpoint: step ?? undefined, model };
    for await (const event of source.lines("talk", body, stopper.signal)) {
      if (event.ids || event.source) Object.assign(turn, { ids: event.ids, source: event.source });
      if (event.id !== undefined) turn.pieces.push({ id: event.id, token: event.token, text: event.text });
      else if (event.text && turn.pieces.length) turn.pieces[turn.pieces.length - 1].text += event.text;
      turn.output += event.text ?? "";
      text.append(event.text ?? "");
    }
  } catch (error) {
    if (!stopper.signal.aborted) problem.replaceChildren(alertBox(messageOf(error)));
  }
  if (!turn.output && !turn.pieces.length && stopper.signal.aborted) {
    box.remove();
    return;
  }
  if (app.talked === turns) turns.push(turn); // or the conversation was cleared meanwhile
  box.replaceWith(showTurn(app, turn));
  if (!list.isConnected && app.view === talk) app.go({}, { replace: true }); // it was drawn anew meanwhile
  takeAway(app, turns);
}

/** @type {(app: App, turns: Turn[]) => void} */
function takeAway(app, turns) {
  if (!turns.length) return;
  const { input } = turns[turns.length - 1];
  app.current = {
    name: "talk",
    python: () => [`model.ask(${pythonString(input)})`],
    svg: () => drawTalk(turns),
    csv: () => ({ head: ["asked", "answered"], rows: turns.map((turn) => [turn.input, turn.output]) }),
  };
}

/**
 * The address of the trace in which a token was chosen; without a number, of the whole answer.
 * @param {Turn} turn
 * @param {number} [n]
 * @returns {StateChanges}
 */
function addressOf({ ids, source, pieces }, n) {
  const written = pieces.map(({ id }) => id);
  const none = { input: null, answer: null, at: null, cell: null, layers: null };
  if (source) {
    const shown = written.slice(0, n === undefined ? undefined : n + 1);
    return { ...none, ids: source.join(","), written: shown.join(","), row: n };
  }
  const read = [...(ids ?? []), ...written.slice(0, n)];
  return { ...none, ids: read.join(","), written: null, row: null };
}

/**
 * A question and its answer, and the ways into it.
 * @param {App} app
 * @param {Turn} turn
 */
function showTurn(app, turn) {
  const { manifest, go } = app;
  const { task, talks } = manifest.model;
  const { input, output, pieces } = turn;
  const continues = ["write", "converse"].includes(task) && !talks; // the answer continues the text
  const exact = pieces.length > 0;
  const inside = exact ? h("button", {
    type: "button", class: "inside", onclick: () => go({ view: "attention", ...addressOf(turn) }),
  }, "Look inside this answer") : "";
  const said = exact ? tokenButtons(turn, (n) => go({ view: "next", ...addressOf(turn, n) })) : [output];
  return h("div", { class: "turn" }, talks ? h("p", { class: "asked" }, input) : null,
    h("div", { class: "said" }, continues ? h("span", { class: "pale" }, input) : null, said), inside);
}

/**
 * The tokens of an answer; those that are parts of one character stand together.
 * @type {(turn: Turn, open: (n: number) => void) => HTMLElement[]}
 */
function tokenButtons({ pieces }, open) {
  /** @type {HTMLElement[]} */
  const buttons = [];
  pieces.forEach(({ token, text }, n) => {
    const part = /^(<0x[0-9A-F]{2}>)+$/.test(token); // of a character
    if (text === "" && part) return;
    buttons.push(h("button", {
      type: "button", class: text ? "token" : "token silent", "data-token": label(token),
      title: `${label(token)}: how it was chosen`, onclick: () => open(n),
    }, text));
  });
  return buttons;
}
