/* The list of the keys. */

import { h } from "./dom.js";

const KEYS = [
  ["arrow keys", "move over a matrix, or between tabs"],
  ["Enter", "open the sum behind a number, or the head in the atlas"],
  ["n, p", "next and previous: the head, the step of the walk, the point of a map"],
  ["j, k", "next and previous layer"],
  ["1 … 9, 0", "the first ten views, in order"],
  ["v, V", "next and previous view"],
  ["/", "to the input"],
  ["+, −, Escape", "deeper into the scene, and out again; also Ctrl and the wheel, or a pinch"],
  ["t", "guided tours; n and p go on and back"],
  ["f", "larger, for a projector"],
  ["u", "undo the last change of What if"],
  ["Escape", "close the sum behind a number, this list, or a panel beside the scene"],
];

/** Show it. */
export function showKeys() {
  const dialog = h("dialog", { "aria-label": "Keys", onclose: () => dialog.remove() }, h("h2", {}, "Keys"),
    h("dl", {}, KEYS.map(([key, words]) => [h("dt", {}, key), h("dd", {}, words)])),
    h("form", { method: "dialog" }, h("button", {}, "Close")));
  document.body.append(dialog);
  dialog.showModal();
}
