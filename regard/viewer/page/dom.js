/* Elements, labels and numbers. Nothing here parses HTML: strings only ever become text. */

const SVG = "http://www.w3.org/2000/svg";
const MATH = "http://www.w3.org/1998/Math/MathML";

export const FONT_FAMILY = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif";

/**
 * @template {Element} E
 * @param {E} element
 * @param {Attributes | undefined} attributes
 * @param {Child[]} children
 * @returns {E}
 */
function build(element, attributes, children) {
  const target = /** @type {any} */ (element);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [k, v] of Object.entries(value)) target.style.setProperty(k, v);
    else if (name === "value") target.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  const flat = /** @type {(Node | string)[]} */ (/** @type {any[]} */ (children).flat(Infinity));
  element.append(...flat.filter((child) => child !== null && child !== undefined));
  return element;
}

/**
 * An HTML element. Attributes named on… are event listeners; null, undefined and false leave one out.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Attributes} [attributes]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export const h = (tag, attributes, ...children) => build(document.createElement(tag), attributes, children);

/**
 * An SVG element.
 * @template {keyof SVGElementTagNameMap} K
 * @param {K} tag
 * @param {Attributes} [attributes]
 * @param {...Child} children
 * @returns {SVGElementTagNameMap[K]}
 */
export const s = (tag, attributes, ...children) =>
  build(document.createElementNS(SVG, tag), attributes, children);

/**
 * A MathML element.
 * @param {string} tag
 * @param {Attributes} [attributes]
 * @param {...Child} children
 * @returns {Element}
 */
export const m = (tag, attributes, ...children) =>
  build(document.createElementNS(MATH, tag), attributes, children);

/**
 * The outer element of a drawing, width × height.
 * @param {number} width
 * @param {number} height
 * @param {Attributes} attributes
 * @param {...Child} children
 */
export const svgRoot = (width, height, attributes, ...children) =>
  s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "font-family": FONT_FAMILY, ...attributes },
    children);

/**
 * The last of a list that is not empty.
 * @template T
 * @param {ArrayLike<T>} list
 * @returns {T}
 */
export const last = (list) => list[list.length - 1];

/**
 * The numbers from 0 to n - 1.
 * @param {number} n
 */
export const range = (n) => Array.from({ length: n }, (_, i) => i);

/**
 * A whole number within 0 … count - 1, from what the address says.
 * @param {string | number | undefined} text
 * @param {number} count
 * @param {number} [usual] where the address says nothing
 */
export const clampIndex = (text, count, usual = 0) =>
  Math.min(Math.max(0, Number(text ?? usual) | 0), count - 1);

// Control and format characters, which change a text's direction or can't be seen, and lone surrogates.
const UNSAFE = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;
const JOINER = "\u200d";
// Nothing but marks and characters that join or select others: alone, they can't be seen.
const UNSEEN = /^(?!\s*$)[\p{DI}\p{M}\u2800\s]+$/u;
const GRAPHEMES = new Intl.Segmenter(); // characters as people count them

/**
 * A token as it is shown: on one line, never blank, without control characters, and cut if it is long.
 * @param {unknown} text
 * @param {number} [longest]
 */
export function label(text, longest = 20) {
  let shown = String(text).slice(0, 4 * longest);
  const escape = (/** @type {string} */ c) => `\\u${(c.codePointAt(0) ?? 0).toString(16).padStart(4, "0")}`;
  if (UNSEEN.test(shown)) shown = shown.replace(/\S/gu, escape);
  shown = shown.replace(UNSAFE, (c) => {
    if (c === "\n") return "\\n";
    if (c === "\t") return "\\t";
    return c === JOINER ? c : escape(c);
  });
  shown = shown.trim() === "" ? "␣".repeat(Math.max(1, Math.min(4, shown.length))) : shown.trim();
  if (shown.length <= longest) return shown;
  const letters = Array.from(GRAPHEMES.segment(shown), ({ segment }) => segment);
  return letters.length > longest ? `${letters.slice(0, longest - 1).join("").trimEnd()}…` : shown;
}

/**
 * A folder's path, cut at its beginning if it is long.
 * @param {string} path
 */
export const shortPath = (path) => label(path.length > 40 ? `…${[...path].slice(-39).join("")}` : path, 160);

/**
 * A number with four significant digits.
 * @param {number | null | undefined} x
 */
export function formatNumber(x) {
  if (x === undefined || x === null || Number.isNaN(x)) return "not a number";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  const size = Math.abs(x);
  const text = size === 0 ? "0" : size >= 1e5 || size < 1e-4 ? x.toExponential(2) : x.toPrecision(4);
  return text.replace("-", "−");
}

/**
 * An attention weight with two decimals; small ones with four significant digits.
 * @param {number} x
 */
export const formatWeight = (x) =>
  (Math.abs(x) >= 0.005 || x === 0 ? x.toFixed(2).replace("-", "−") : formatNumber(x));

/** @param {number} x */
export function formatPercent(x) {
  if (x >= 0.0995) return `${(100 * x).toFixed(1)} %`;
  return x >= 1e-5 ? `${(100 * x).toPrecision(2)} %` : "< 0.001 %";
}

/**
 * A whole number with commas between thousands.
 * @param {number} n
 */
export const formatCount = (n) => n.toLocaleString("en");

/**
 * A string literal of Python.
 * @param {string} text
 */
export const pythonString = (text) => JSON.stringify(text).replace(/[\u007f-\uffff]/g,
  (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

/**
 * A file from the user's disk in base64, as the server takes it.
 * @param {File} file
 */
export async function toBase64(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text = "";
  const piece = 0x8000; // as many arguments as any browser takes
  for (let i = 0; i < bytes.length; i += piece) text += String.fromCharCode(...bytes.subarray(i, i + piece));
  return btoa(text);
}

/**
 * The message of whatever was thrown.
 * @param {unknown} error
 */
export const messageOf = (error) => (error instanceof Error ? error.message : String(error));

/**
 * An error message that screen readers announce.
 * @param {string} message
 */
export const alertBox = (message) => h("p", { class: "wrong", role: "alert" }, message);

/**
 * A line that says what is pointed at, which screen readers announce.
 * @param {string} [text]
 */
export const readoutLine = (text = "") =>
  h("p", { class: "readout", role: "status", "aria-live": "polite" }, text);

/**
 * Scroll a box, and nothing around it, until one of its elements can be seen.
 * @param {HTMLElement} box
 * @param {Element | null} element
 */
export function scrollInside(box, element) {
  if (!element) return;
  const [outer, inner] = [box.getBoundingClientRect(), element.getBoundingClientRect()];
  box.scrollTop += Math.min(0, inner.top - outer.top) + Math.max(0, inner.bottom - outer.bottom);
  box.scrollLeft += Math.min(0, inner.left - outer.left) + Math.max(0, inner.right - outer.right);
}

/**
 * A listener for keydown. A handler that returns false leaves the key to others.
 * @param {KeyHandlers} handlers by key
 * @returns {(event: KeyboardEvent) => void}
 */
export const onKeys = (handlers) => (event) => {
  const handle = handlers[event.key];
  if (!handle || event.altKey || event.ctrlKey || event.metaKey || handle(event) === false) return;
  event.preventDefault();
  event.stopPropagation();
};

/**
 * Handlers of the four arrow keys.
 * @param {(down: number, right: number) => unknown} move
 * @returns {KeyHandlers}
 */
export const arrowKeys = (move) => ({
  ArrowUp: () => move(-1, 0),
  ArrowDown: () => move(1, 0),
  ArrowLeft: () => move(0, -1),
  ArrowRight: () => move(0, 1),
});

/**
 * A button that is pressed or not.
 * @param {string} words
 * @param {boolean} pressed
 * @param {() => void} onclick
 * @param {Attributes} [more]
 */
export const toggleButton = (words, pressed, onclick, more) =>
  h("button", { type: "button", "aria-pressed": String(pressed), onclick, ...more }, words);

/**
 * One of a few, as buttons beside each other; arrow keys move between them.
 * @param {string} name
 * @param {[value: string, words: string][]} choices
 * @param {string} chosen
 * @param {(value: string) => void} choose
 */
export function tabs(name, choices, chosen, choose) {
  const buttons = choices.map(([value, words]) =>
    h("button", {
      type: "button",
      role: "tab",
      id: `${name}-${value}`,
      "aria-selected": String(value === chosen),
      tabindex: value === chosen ? "0" : "-1",
      onclick: () => choose(value),
    }, words));
  /** @param {number} by */
  const move = (by) => {
    const at = buttons.findIndex((button) => button === document.activeElement);
    const next = buttons[(at + by + buttons.length) % buttons.length];
    next.focus();
    next.click();
  };
  const onkeydown = onKeys({ ArrowRight: () => move(1), ArrowLeft: () => move(-1) });
  return h("div", { role: "tablist", "aria-label": name, class: "tabs", onkeydown }, buttons);
}

/**
 * One of many: a menu with a button for the previous and the next one.
 * @param {string} words
 * @param {string} id
 * @param {[value: string | number, words: string | number][]} values
 * @param {string | number} chosen
 * @param {(value: string | number) => void} choose
 */
export function stepMenu(words, id, values, chosen, choose) {
  const menu = h("select", { id, onchange: () => choose(menu.value) },
    values.map(([value, name]) => h("option", { value, selected: String(value) === String(chosen) }, name)));
  const at = values.findIndex(([value]) => String(value) === String(chosen));
  /** @type {(by: number, sign: string, title: string) => HTMLButtonElement} */
  const step = (by, sign, title) => h("button", {
    type: "button", class: "step", id: `${id}-${by < 0 ? "previous" : "next"}`, title, "aria-label": title,
    disabled: !values[at + by], onclick: () => choose(values[at + by][0]),
  }, sign);
  return h("span", { class: "choice" }, h("label", { for: id }, words),
    step(-1, "‹", `previous ${words}`), menu, step(1, "›", `next ${words}`));
}

/**
 * A menu of tokens, each with its number.
 * @param {string[]} tokens
 * @returns {[number, string][]}
 */
export const numberTokens = (tokens) => tokens.map((token, i) => [i, `${i} ${label(token)}`]);

/**
 * A menu of the numbers from 0 to n - 1.
 * @param {number} n
 * @returns {[number, number][]}
 */
export const numberMenu = (n) => range(n).map((i) => [i, i]);

/**
 * @param {string} caption
 * @param {TableData} data
 */
export const buildTable = (caption, { head, rows }) => h("table", {}, h("caption", {}, caption),
  h("thead", {}, h("tr", {}, head.map((word) => h("th", { scope: "col" }, word)))),
  h("tbody", {}, rows.map(([first, ...rest]) =>
    h("tr", {}, h("th", { scope: "row" }, first), rest.map((cell) => h("td", {}, cell))))));

/**
 * The numbers of an image as a table, which is built when it is opened.
 * @param {string | (() => string)} caption
 * @param {() => TableData} data
 */
export function tableTwin(caption, data) {
  const details = h("details", { class: "twin" }, h("summary", {}, "As a table"));
  details.addEventListener("toggle", () => {
    if (!details.open || details.children.length > 1) return;
    const title = typeof caption === "string" ? caption : caption();
    details.append(h("div", { class: "scroll", tabindex: "0" }, buildTable(title, data())));
  });
  return details;
}

/**
 * A button that opens a menu below it, which may be made only then; Escape closes it.
 * @type {(id: string, title: string, content: HTMLElement | (() => Promise<HTMLElement>)) =>
 *   HTMLDetailsElement}
 */
export function dropDown(id, title, content) {
  const menu = h("details", { class: "drop-down" }, h("summary", { id }, title),
    typeof content === "function" ? null : content);
  menu.addEventListener("toggle", async () => {
    if (typeof content === "function" && menu.children.length === 1) menu.append(await content());
  });
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    event.stopPropagation();
    menu.open = false;
    menu.querySelector("summary")?.focus();
  });
  return menu;
}

/**
 * What a model that reads files takes: their types, what people call one, and an example's suffix.
 * @param {ModelInfo} model
 */
export const fileKind = ({ hears }) => (hears
  ? { accept: "audio/wav,.wav", noun: "recording", suffix: "wav" }
  : { accept: "image/png,image/jpeg,image/webp", noun: "picture", suffix: "png" });
