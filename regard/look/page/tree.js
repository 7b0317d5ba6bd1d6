/* The tree of an answer: at every step the words that were weighed, which of them went on, and the way that won. */

import { h, label, number, percent, s, table, twin } from "./dom.js";
import { colour } from "./grid.js";

const [HIGH, GAP, BETWEEN, TOP] = [24, 7, 44, 26];
const MOST = 2000; // elements

/** The numbers of the candidates that lead to number i of step n, its own last. */
export function way(tree, n, i) {
  const found = [i];
  for (let at = n; at > 0; at--) found.unshift(tree.steps[at][found[0]].from);
  return found;
}

const fate = (one, won) => (won ? "in the answer" : one.ended ? "an end" : one.kept ? "went on" : "dropped");

/** at: [step, number] of the candidate that is looked at, or null. choose(step, number): another. */
export function branches(given, at, choose) {
  const { steps, chosen } = given;
  const most = Math.max(...steps.map((step) => step.length));
  const many = Math.max(8, Math.floor(MOST / (4 * most))); // steps that are drawn
  const first = Math.max(0, Math.min((at?.[0] ?? 0) - (many >> 1), steps.length - many));
  const shown = steps.slice(first, first + many);
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = "600 13px system-ui, 'Segoe UI', Helvetica, Arial, sans-serif";
  let x = 4;
  const columns = shown.map((step) => {
    const wide = Math.ceil(Math.max(...step.map((one) => pen.measureText(label(one.token, 14)).width))) + 62;
    const column = { x, wide };
    x += wide + BETWEEN;
    return column;
  });
  const y = (i) => TOP + i * (HIGH + GAP);
  const on = at ? way(given, ...at) : [];
  const won = (n, i) => chosen[n] === i;
  const [edges, boxes] = [[], []];
  shown.forEach((step, k) => {
    const n = first + k;
    boxes.push(s("text", { x: columns[k].x, y: 14, "font-size": 11.5, fill: colour("--pale") }, `step ${n + 1}`));
    step.forEach((one, i) => {
      const [{ x: left, wide }, top] = [columns[k], y(i)];
      const ink = won(n, i) ? "--line" : one.kept || one.ended ? "--pale" : "--edge";
      if (k > 0) {
        const [from, to] = [columns[k - 1].x + columns[k - 1].wide, left];
        const middle = (from + to) / 2;
        edges.push([won(n, i) ? 1 : 0, s("path", {
          d: `M${from},${y(one.from) + HIGH / 2} C${middle},${y(one.from) + HIGH / 2} ${middle},${top + HIGH / 2} ${to},${top + HIGH / 2}`,
          fill: "none", stroke: colour(ink), "stroke-width": won(n, i) ? 2.5 : 1,
        })]);
      }
      const here = at && at[0] === n && at[1] === i;
      const strong = won(n, i) || one.kept || one.ended;
      boxes.push(s("g", { class: "node", "data-step": n, "data-number": i, onclick: () => choose(n, i) },
        s("title", {}, told(n, i)),
        s("rect", { x: left, y: top, width: wide, height: HIGH, rx: 5, fill: colour(here || on[n] === i ? "--raised" : "--ground"), stroke: colour(here ? "--mark" : ink), "stroke-width": here ? 2.5 : won(n, i) ? 2 : 1, "stroke-dasharray": strong || here ? null : "3 3" }),
        s("text", { x: left + 8, y: top + HIGH / 2, "dominant-baseline": "central", "font-size": 13, "font-weight": won(n, i) ? 600 : 400, fill: colour(strong ? "--ink" : "--pale") }, label(one.token, 14)),
        s("text", { x: left + wide - 8, y: top + HIGH / 2, "dominant-baseline": "central", "text-anchor": "end", "font-size": 11.5, fill: colour("--pale") }, one.p >= 0.001 ? one.p.toFixed(3) : "< .001")));
    });
  });
  function told(n, i) {
    const one = steps[n][i];
    return `step ${n + 1}, ${label(one.token)}: ${percent(one.p)} after ${n ? label(steps[n - 1][one.from].token) : "the beginning"}, sum of logarithms ${number(one.score)}, ${fate(one, won(n, i))}`;
  }
  const [width, height] = [x - BETWEEN + 4, y(most)];
  const picture = s("svg", {
    id: "tree", viewBox: `0 0 ${width} ${height}`, width, height, tabindex: "0", role: "application", "aria-roledescription": "tree",
    "aria-label": `The search, ${steps.length} steps. Left and right go along it, up and down to other words of a step.`,
    "font-family": "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif",
  }, edges.sort((a, b) => a[0] - b[0]).map(([, edge]) => edge), boxes);
  picture.addEventListener("keydown", (event) => {
    const [n, i] = at ?? [-1, 0];
    const next = steps[n + 1]?.findIndex((one) => n < 0 || one.from === i);
    const to = {
      ArrowLeft: () => n > 0 && [n - 1, steps[n][i].from],
      ArrowRight: () => next >= 0 && [n + 1, chosen[n] === i || n < 0 ? chosen[n + 1] ?? next : next],
      ArrowUp: () => i > 0 && [n, i - 1],
      ArrowDown: () => n >= 0 && i < steps[n].length - 1 && [n, i + 1],
    }[event.key];
    if (!to || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    at = to() || at; // at once: the next key may come before this is drawn
    if (at) choose(...at);
  });
  const numbers = () => ({
    head: ["step", "token", "after", "probability", "sum of logarithms", ""],
    rows: steps.flatMap((step, n) => step.map((one, i) => [n + 1, label(one.token, 40), n ? label(steps[n - 1][one.from].token, 40) : "", number(one.p), number(one.score), fate(one, won(n, i))])),
  });
  const readout = h("p", { class: "readout", role: "status", "aria-live": "polite" }, at ? told(...at) : "Click a word, or move with the arrow keys: the matrix shows where the model looked to write it.");
  const scroll = h("div", { class: "scroll" }, picture);
  if (at) requestAnimationFrame(() => { scroll.scrollLeft = columns[at[0] - first].x - scroll.clientWidth / 2; });
  const root = h("figure", { class: "tree" }, scroll, h("figcaption", {}, readout,
    h("p", { class: "scale" }, h("span", { class: "key won" }, "the answer"), h("span", { class: "key" }, "went on, or ended"), h("span", { class: "key gone" }, "dropped"),
      h("span", { class: "pale" }, "numbers: the probability of a word after those before it"),
      shown.length < steps.length ? h("span", { class: "pale" }, `steps ${first + 1} to ${first + shown.length} of ${steps.length}`) : null)),
  twin(() => table("Every word that was weighed", numbers().head, numbers().rows)));
  return { root, svg: picture, csv: numbers };
}
