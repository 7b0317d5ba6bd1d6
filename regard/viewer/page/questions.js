/* Questions that people have about what they see, each with the way to its answer. */

import { h } from "./dom.js";
import { quote } from "./describe.js";
import { largestWeights } from "./scene_data.js";
import { readChanges, setChanges } from "./selection.js";

/** @typedef {import("./scene_data.js").Scene} Scene */

/**
 * A button for each question that this model can answer.
 * @type {(app: App, scene: Scene) => Child[]}
 */
export function listQuestions(app, scene) {
  const { manifest, source, go } = app;
  const { outputs, steps, attentions } = manifest;
  const said = scene.answers?.list[0]?.word;
  /** @type {Ask} */
  const ask = (id, words, onclick) => h("button", { type: "button", id: `ask-${id}`, onclick }, words);
  const row = scene.answers?.row ?? null;
  const list = [];
  if (outputs && (outputs.parts || outputs.lens) && said !== undefined) {
    const open = () => go({ view: "next", words: "parts", row, said: null });
    list.push(ask("why", `Why did it say ${quote(said)}?`, open));
    if (outputs.parts) list.push(ask("word", "Which word decided this?", open));
  }
  if (Object.keys(attentions).length) {
    list.push(ask("head", `What does head ${scene.head} do?`, showEvidence));
    if (source.live && outputs) list.push(...changeQuestions(app, scene, ask));
  }
  if (source.live && outputs && steps.length) {
    list.push(ask("learned", "When did it learn this?", () => go({ view: "training", learned: 1, row })));
  }
  return list.length ? list : [h("p", { class: "pale" }, "This model predicts nothing to ask about.")];
}

/** @typedef {(id: string, words: string, onclick: () => void) => HTMLElement} Ask */

/** @type {(app: App, scene: Scene, ask: Ask) => HTMLElement[]} */
function changeQuestions(app, scene, ask) {
  const { keys, head, token, attention, weightsOf } = scene;
  const change = (/** @type {Change} */ one) => () =>
    setChanges(app, [...readChanges(app.state), one], { view: "whatif" });
  const [best] = largestWeights(weightsOf(token), 1);
  const part = attention?.name ?? "";
  const silence = ask("silence", `What if head ${head} were silent?`,
    change({ kind: "silence", part, head }));
  if (!best || keys.grid || !["text", "source"].includes(keys.side)) return [silence];
  const words = `What if ${quote(keys.tokens[best[0]])} were hidden?`;
  return [ask("hide", words, change({ kind: "hide", token: best[0] })), silence];
}

/** Open the figures below the picture. */
function showEvidence() {
  const figures = /** @type {HTMLDetailsElement | null} */ (document.getElementById("evidence"));
  if (!figures) return;
  figures.open = true;
  figures.querySelector("summary")?.focus();
  figures.scrollIntoView({ block: "nearest" });
}
