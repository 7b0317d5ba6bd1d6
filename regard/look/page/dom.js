/* Elements, words and numbers. Nothing here parses HTML: words only ever become text. */

const SVG = "http://www.w3.org/2000/svg";
const MATH = "http://www.w3.org/1998/Math/MathML";

function made(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [k, v] of Object.entries(value)) element.style.setProperty(k, v);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

export const h = (tag, attributes, ...children) => made(document.createElement(tag), attributes, children);
export const s = (tag, attributes, ...children) => made(document.createElementNS(SVG, tag), attributes, children);
export const m = (tag, attributes, ...children) => made(document.createElementNS(MATH, tag), attributes, children);

// What steers a text's direction or cannot be seen, and what stands alone of a pair.
const STEERING = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;
const JOINER = "\u200d";
const LETTERS = new Intl.Segmenter(); // as people count them

/** A token as it is shown: on one line, never blank, nothing in it that steers, cut if it is long. */
export function label(text, longest = 20) {
  let shown = String(text).slice(0, 4 * longest);
  shown = shown.replace(STEERING, (c) => {
    if (c === "\n") return "\\n";
    if (c === "\t") return "\\t";
    return c === JOINER ? c : `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`;
  });
  shown = shown.trim() === "" ? "␣".repeat(Math.max(1, Math.min(4, shown.length))) : shown.trim();
  if (shown.length <= longest) return shown;
  const letters = [...LETTERS.segment(shown)].map((one) => one.segment);
  return letters.length > longest ? `${letters.slice(0, longest - 1).join("").trimEnd()}…` : shown;
}

/** A folder's name as it is shown: its end tells most. */
export const folder = (path) => label(path.length > 40 ? `…${[...path].slice(-39).join("")}` : path, 160);

/** Four figures, as short as they can be. */
export function number(x) {
  if (x === undefined || x === null || Number.isNaN(x)) return "not a number";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  const size = Math.abs(x);
  const text = size === 0 ? "0" : size >= 1e5 || size < 1e-4 ? x.toExponential(2) : x.toPrecision(4);
  return text.replace("-", "−");
}

export const percent = (x) => (x >= 0.0995 ? `${(100 * x).toFixed(1)} %` : x >= 1e-5 ? `${(100 * x).toPrecision(2)} %` : "< 0.001 %");

/** A string as Python writes it. */
export const python = (text) => JSON.stringify(text).replace(/[\u007f-\uffff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** A file from the user's disk, in base64: it goes to the server on this machine, and nowhere else. */
export async function encoded(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let i = 0; i < bytes.length; i += 0x8000) text += String.fromCharCode(...bytes.subarray(i, i + 0x8000));
  return btoa(text);
}

/** A button that is pressed or not. */
export const toggle = (words, pressed, onclick, more) =>
  h("button", { type: "button", "aria-pressed": String(pressed), onclick, ...more }, words);

/** One of a few, as buttons beside each other; arrow keys move between them. */
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
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const at = buttons.indexOf(document.activeElement);
    const next = buttons[(at + step + buttons.length) % buttons.length];
    next.focus();
    next.click();
  };
  return h("div", { role: "tablist", "aria-label": name, class: "tabs", onkeydown: move }, buttons);
}

/** A number among many: a menu, with steps to its sides. */
export function choice(words, id, values, chosen, choose) {
  const menu = h("select", { id, onchange: () => choose(menu.value) },
    values.map(([value, name]) => h("option", { value, selected: String(value) === String(chosen) }, name)));
  const step = (by, sign, title) => {
    const at = values.findIndex(([value]) => String(value) === String(chosen)) + by;
    return h("button", {
      type: "button", class: "step", id: `${id}${by}`, title, "aria-label": title,
      disabled: !values[at], onclick: () => choose(values[at][0]),
    }, sign);
  };
  return h("span", { class: "choice" }, h("label", { for: id }, words),
    step(-1, "‹", `previous ${words}`), menu, step(1, "›", `next ${words}`));
}

/** The numbers of a picture as a table, made when it is opened. */
export function twin(make) {
  const details = h("details", { class: "twin" }, h("summary", {}, "As a table"));
  details.addEventListener("toggle", async () => {
    if (details.open && details.children.length === 1) details.append(h("div", { class: "scroll", tabindex: "0" }, await make()));
  });
  return details;
}

export function table(caption, head, rows) {
  return h("table", {}, h("caption", {}, caption),
    h("thead", {}, h("tr", {}, head.map((word) => h("th", { scope: "col" }, word)))),
    h("tbody", {}, rows.map(([first, ...rest]) =>
      h("tr", {}, h("th", { scope: "row" }, first), rest.map((cell) => h("td", {}, cell))))));
}
