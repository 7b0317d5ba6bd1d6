/* Two distributions side by side. */

import { formatNumber, formatPercent, h, label, tableTwin } from "./dom.js";

/** @type {(before: number, after: number) => boolean} */
const isSame = (before, after) => Math.abs(after - before) < 5e-4;

/** @param {number} x */
const formatPoints = (x) => (isSame(x, 0) ? "0.0" : `${x < 0 ? "−" : "+"}${(100 * Math.abs(x)).toFixed(1)}`);

/**
 * The likeliest tokens before and after.
 * @param {WordChange[]} top
 * @param {[string, string]} names what before and after are called
 * @param {string} caption
 */
export function drawVersus(top, names, caption) {
  const peak = Math.max(...top.flatMap(({ before, after }) => [before, after]), 1e-30);
  /** @type {(x: number, kind: string) => HTMLElement} */
  const bar = (x, kind) => h("i", { class: kind, style: { width: `${(100 * x) / peak}%` } });
  const csv = () => ({
    head: ["token", ...names, "difference", ...names.map((name) => `logit ${name}`)],
    rows: top.map(({ word, before, after, logit_before: x, logit_after: y }) => [
      label(word, 40), ...[before, after, after - before, x, y].map(formatNumber)]),
  });
  const list = h("div", { class: "versus" },
    ["", "", ...names, "points"].map((words) => h("span", { class: "pale head" }, words)),
    top.map(({ word, before, after }) => [
      h("span", { class: "word" }, label(word, 28)),
      h("div", { class: "share two", "aria-hidden": "true" }, bar(before, "was"), bar(after, "now")),
      h("span", { class: "num" }, formatPercent(before)), h("span", { class: "num" }, formatPercent(after)),
      h("span", { class: `num ${isSame(before, after) ? "pale" : ""}` }, formatPoints(after - before))]));
  return { root: h("figure", {}, list, tableTwin(caption, csv)), csv };
}
