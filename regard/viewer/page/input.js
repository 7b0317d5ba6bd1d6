/* Fields for texts. The input of the page is traced a moment after a keystroke. */

import { alertBox, h } from "./dom.js";

const PAUSE = 60; // milliseconds after a keystroke
const MOST_LINES = 6;

/**
 * A field for a text of several lines: Enter sends it, Shift+Enter begins a new line.
 * @param {string} id
 * @param {string} words what it is for
 * @param {string} value
 * @param {Attributes} [more]
 */
export function textField(id, words, value, more) {
  const fit = () => { field.rows = Math.min(MOST_LINES, field.value.split("\n").length); };
  const field = h("textarea", {
    id, class: "line", "aria-label": words, autocomplete: "off", spellcheck: "false", dir: "auto",
    oninput: fit, onfit: fit,
    onkeydown: (/** @type {KeyboardEvent} */ event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      field.form?.requestSubmit();
    },
    ...more,
  });
  field.value = value;
  fit();
  return field;
}

/** The input of the page. */
export class LiveInput {
  /** @type {number | undefined} */
  #timer;
  /** @type {string | null} */
  #sent = null;
  /** Whether somebody is typing. */
  typing = false;

  /** @param {(text: string, typing: boolean) => void} send */
  constructor(send) {
    this.send = send;
    this.field = textField("input", "Input", "");
    this.field.addEventListener("input", () => {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#submit(true), PAUSE);
    });
    this.problem = h("span", { class: "problem" });
    this.root = h("span", { class: "live" }, this.field, this.problem);
  }

  /** Send what is written now. */
  submit() {
    this.#submit(false);
  }

  /** @param {boolean} typing */
  #submit(typing) {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const text = this.field.value;
    const empty = text.trim() === "";
    this.problem.replaceChildren(...(empty ? [alertBox("Write something: there is nothing to trace.")] : []));
    if (empty) return;
    this.#sent = text;
    this.typing = typing;
    this.send(text, typing);
  }

  /**
   * Show what was traced, unless somebody is writing something else.
   * @param {string} text
   */
  show(text) {
    if (this.#timer !== undefined || text === this.#sent) return;
    this.#sent = text;
    this.field.value = text;
    this.field.dispatchEvent(new Event("fit"));
    this.problem.replaceChildren();
  }
}
