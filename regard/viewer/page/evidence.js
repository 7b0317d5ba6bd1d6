/* What the name of a head rests on: where its attention goes, on this input and on built-in texts. */

import { buildTable, formatWeight, h } from "./dom.js";
import { articleFor, headName, roleTable, roleWords } from "./describe.js";

/** @typedef {import("./scene_data.js").Scene} Scene */

const SUMMARY = "What this head does, in figures";
const STILL = 700; // milliseconds: while one types, or a film plays, nobody asks for names

/**
 * The figures of the selected head, once they are opened; null if it has none. With `named`, what it does on
 * the built-in texts is said as soon as it is known.
 * @type {(app: App, scene: Scene, named: boolean) => HTMLElement | null}
 */
export function evidence(app, scene, named) {
  if (!Object.keys(scene.attention?.patterns ?? {}).length) return null;
  const summary = h("summary", {}, SUMMARY);
  const figures = h("div", { class: "scroll", tabindex: "0" });
  const details = h("details", { class: "twin", id: "evidence" }, summary, figures);
  const live = app.source.live ? app.source : null;
  /** @param {HeadCorpus | null} corpus */
  const fill = (corpus) => {
    figures.replaceChildren(buildTable(`${headName(scene)}: how much of its attention goes where`,
      compareTables(scene, corpus)), h("p", { class: "pale" }, live ? describeCorpus(scene, corpus) : null));
  };
  details.addEventListener("toggle", async () => {
    if (!details.open || figures.children.length) return;
    fill(null);
    if (!live) return;
    await live.get("heads").then(fill, (error) => figures.append(h("p", { role: "alert" }, error.message)));
  });
  if (live && named) {
    setTimeout(() => {
      if (!details.isConnected) return;
      live.get("heads").then((corpus) => summary.append(nameThere(scene, corpus)),
        () => {}); // said when the figures are opened
    }, STILL);
  }
  return details;
}

/** The patterns of the selected attention on the built-in texts.
 * @type {(scene: Scene, corpus: HeadCorpus | null) => HeadPatterns | null} */
const patternsThere = ({ attention }, corpus) =>
  (corpus && "attentions" in corpus && corpus.attentions[attention?.name ?? ""]) || null;

/** @type {(scene: Scene, corpus: HeadCorpus) => string} */
function nameThere(scene, corpus) {
  const there = patternsThere(scene, corpus);
  if (!there || !("texts" in corpus)) return "";
  const role = there.roles[scene.head];
  const words = roleWords(role);
  const name = role && words
    ? `${articleFor(words[0])} ${words[0]} (${formatWeight(there.patterns[role].weights[scene.head])})`
    : "no named pattern";
  return `; on ${corpus.texts} built-in texts: ${name}`;
}

/** @type {(scene: Scene, corpus: HeadCorpus | null) => TableData} */
function compareTables(scene, corpus) {
  const here = roleTable(scene.attention?.patterns ?? {}, scene.head);
  const there = patternsThere(scene, corpus);
  if (!there || !corpus || !("texts" in corpus)) return here;
  const others = roleTable(there.patterns, scene.head);
  const names = [...new Set([...here.rows, ...others.rows].map(([name]) => name))];
  const cells = (/** @type {TableData} */ { rows }, /** @type {string | number} */ name) =>
    rows.find(([other]) => other === name)?.slice(1) ?? ["", "", ""];
  return {
    head: [...here.head, `on ${corpus.texts} built-in texts`, ...here.head.slice(2)],
    rows: names.map((name) => [name, ...cells(here, name), ...cells(others, name)]),
  };
}

/** @type {(scene: Scene, corpus: HeadCorpus | null) => string} */
function describeCorpus(scene, corpus) {
  if (!corpus) return "The same figures on built-in texts are being computed ...";
  if ("reason" in corpus) return `There are no figures of other inputs: ${corpus.reason}.`;
  const { texts, repeats } = corpus;
  const random = patternsThere(scene, corpus)?.patterns.induction
    ? ` Induction and duplicates are measured on ${repeats} sequences of random tokens that come twice.` : "";
  return `The last three columns are of ${texts} built-in texts.${random}`;
}
