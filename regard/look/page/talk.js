/* The model's own front door: ask it, and go from the answer into the other views. */

import { h, label, s } from "./dom.js";
import { colour } from "./grid.js";

const VERBS = { write: "Go on", translate: "Translate", chat: "Say", fill: "Fill", restore: "Restore", classify: "Classify", tag: "Tag", span: "Find", embed: "Embed", words: "Ask" };

/** What was asked and what was answered, as a drawing. */
function drawn({ input, output }) {
  const lines = [[input, "--pale"], [output, "--ink"]].flatMap(([text, ink]) =>
    text.split("\n").flatMap((line) => line.match(/.{1,84}(?:\s|$)|.{1,84}/gu) ?? [" "]).map((line) => [line, ink]));
  const height = 22 * lines.length + 16;
  return s("svg", { viewBox: `0 0 720 ${height}`, width: 720, height, "font-size": 14, "font-family": "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif" },
    lines.map(([line, ink], i) => s("text", { x: 10, y: 24 + 22 * i, fill: colour(ink) }, label(line, 200))));
}

export const talk = {
  async show(root, app) {
    const { manifest, source, go } = app;
    const { task, talks } = manifest.model;
    const writes = task === "write" && !talks; // its answer goes on from the text
    const field = h("textarea", { id: "asked", "aria-label": "Your text", dir: "auto" });
    field.value = app.talked?.input ?? manifest.input ?? "";
    const said = h("div", { role: "status", "aria-live": "polite" });
    const tell = () => {
      if (!app.talked) return;
      const { input, output } = app.talked;
      const python = () => [`model.ask(${JSON.stringify(input)})`];
      app.current = { name: "talk", python, svg: () => drawn(app.talked), csv: () => ({ head: ["asked", "answered"], rows: [[input, output]] }) };
      const pairs = Boolean(manifest.tokens.written);
      const inside = h("button", { type: "button", id: "inside", onclick: () => go({ view: "attention", input: task === "write" ? input + (talks ? "\n" : "") + output : input, answer: pairs && task !== "classify" ? output : null, at: null, cell: null, row: null }) }, "Look inside this answer");
      said.replaceChildren(h("div", { class: "said" }, writes ? h("span", { class: "pale" }, input) : null, output), ["write", "translate", "chat"].includes(task) ? inside : "");
    };
    const ask = async (event) => {
      event.preventDefault();
      said.replaceChildren(h("p", { class: "pale" }, "…"));
      try {
        app.talked = { input: field.value, output: (await source.ask({ input: field.value, checkpoint: manifest.step ?? undefined })).output };
        tell();
      } catch (error) {
        said.replaceChildren(h("p", { class: "wrong", role: "alert" }, error.message));
      }
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey) ask(event);
    });
    tell();
    root.append(h("h2", {}, "Ask the model", h("small", { class: "pale" }, talks ? "it answers" : `its task: ${task}`)), h("form", { onsubmit: ask }, field, h("button", { type: "submit", id: "say" }, VERBS[talks ? "chat" : task] ?? "Ask"), h("small", { class: "pale" }, "  Enter sends, Shift+Enter is a new line")), said);
  },
};
