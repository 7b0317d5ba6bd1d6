/* Ask the model, and go from its answer into the other views. */

import { themeColour } from "./colour.js";
import { alertBox, h, label, messageOf, pythonString, s, svgRoot } from "./dom.js";
import { heading } from "./selection.js";

/** @type {Record<string, string>} */
const VERBS = {
  write: "Go on", translate: "Translate", chat: "Say", fill: "Fill", restore: "Restore", classify: "Classify",
  tag: "Tag", span: "Find", embed: "Embed", words: "Ask",
};

/**
 * The question and the answer as a drawing.
 * @param {{ input: string, output: string }} talk
 */
function drawTalk({ input, output }) {
  const lines = [[input, "--pale"], [output, "--ink"]].flatMap(([text, colour]) =>
    text.split("\n").flatMap((line) => line.match(/.{1,84}(?:\s|$)|.{1,84}/gu) ?? [" "])
      .map((line) => [line, colour]));
  return svgRoot(720, 22 * lines.length + 16, { "font-size": 14 }, lines.map(([line, colour], i) =>
    s("text", { x: 10, y: 24 + 22 * i, fill: themeColour(colour) }, label(line, 200))));
}

/** @type {View} */
export const talk = {
  show(root, app) {
    const { manifest, source } = app;
    const { task, talks } = manifest.model;
    const field = h("textarea", { id: "asked", "aria-label": "Your text", dir: "auto" });
    field.value = app.talked?.input ?? manifest.input ?? "";
    const answer = h("div", { role: "status", "aria-live": "polite" });
    const ask = async (/** @type {Event} */ event) => {
      event.preventDefault();
      if (!source.live) return;
      answer.replaceChildren(h("p", { class: "pale" }, "…"));
      try {
        const { step, models, chosen } = manifest;
        const model = chosen ? models?.[chosen] : undefined;
        const { output } = await source.ask({ input: field.value, checkpoint: step ?? undefined, model });
        app.talked = { input: field.value, output };
        answer.replaceChildren(...showAnswer(app, app.talked));
      } catch (error) {
        answer.replaceChildren(alertBox(messageOf(error)));
      }
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey) ask(event);
    });
    if (app.talked) answer.replaceChildren(...showAnswer(app, app.talked));
    root.append(heading("Ask the model", talks ? "it answers" : `its task: ${task}`),
      h("form", { onsubmit: ask }, field,
        h("button", { type: "submit", id: "say" }, VERBS[talks ? "chat" : task] ?? "Ask"),
        h("small", { class: "pale" }, "  Enter sends, Shift+Enter starts a new line")),
      answer);
  },
};

/**
 * The answer, and a way into the views of it.
 * @param {App} app
 * @param {{ input: string, output: string }} talked
 */
function showAnswer(app, talked) {
  const { manifest, go } = app;
  const { task, talks } = manifest.model;
  const { input, output } = talked;
  app.current = {
    name: "talk",
    python: () => [`model.ask(${pythonString(input)})`],
    svg: () => drawTalk(talked),
    csv: () => ({ head: ["asked", "answered"], rows: [[input, output]] }),
  };
  const writes = ["write", "converse"].includes(task); // it reads what it has written
  const continues = writes && !talks; // the answer continues the text
  const fullText = input + (talks ? "\n" : "") + output;
  const isPair = manifest.tokens.written && task !== "classify";
  const inside = h("button", { type: "button", id: "inside", onclick: () => go({
    view: "attention", input: writes ? fullText : input, answer: isPair ? output : null,
    at: null, cell: null, row: null,
  }) }, "Look inside this answer");
  return [h("div", { class: "said" }, continues ? h("span", { class: "pale" }, input) : null, output),
    writes || ["translate", "chat"].includes(task) ? inside : ""];
}
