/* A matrix that can be read: a heat map with words at its sides, arrow keys, a live line, and a table. */

import { css, dark, ink, opaque, painted } from "./colour.js";
import { h, label, number, s, table, twin } from "./dom.js";

const FONT = "12px system-ui, 'Segoe UI', Helvetica, Arial, sans-serif";
const LEAST = 12; // pixels between two words
const WIDEST = 150; // of words on the left
const ROWS = 64; // of a table, around the chosen cell
const COLUMNS = 64;

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** The numbers that the i-th of `few` groups of neighbours stands for: the first, and one after the last. */
const span = (i, many, few) => [Math.floor((i * many) / few), Math.floor(((i + 1) * many) / few)];

/**
 * rows, columns: the words at the sides, all of them; there may be fewer numbers, each the largest of neighbours.
 * data, shape: the numbers. signed: they have two sides of zero. why(r, c): why a cell has no number, if so; where
 * that is, why.blank is not 0.
 * names: what a row and a column are called. at, move(r, c): the cell that is looked at. open(r, c): enter it.
 */
export function grid(given) {
  const { rows, columns, data, signed = false, names = ["row", "column"], why, open, move, title } = given;
  const [tall, wide] = given.shape;
  const [T, S] = [rows.length, columns.length];
  const exact = tall === T && wide === S;
  let at = given.at ?? null;
  let [low, high] = given.range ?? limits(data);
  if (signed) [low, high] = [-Math.max(-low, high, 1e-30), Math.max(-low, high, 1e-30)];
  else low = Math.min(0, low);
  const blank = exact && why ? why.blank : null; // not 0 where there is a reason
  const share = (x, i) => {
    if (!(x > -Infinity) || (blank && blank[i])) return -1;
    return high > low ? (x - low) / (high - low) : 0;
  };
  const canvas = h("canvas", {
    tabindex: "0", class: "matrix", role: "application", "aria-roledescription": "matrix",
    id: given.id ?? "matrix",
    "aria-label": `${title}: ${T} × ${S}. Arrow keys move, Enter opens a number.`,
  });
  const readout = h("p", { class: "readout", role: "status", "aria-live": "polite" });
  const scroll = h("div", { class: "scroll" }, canvas);
  const masked = dark() ? opaque(38, 43, 50) : opaque(228, 231, 235);
  const picture = painted(data, tall, wide, [low, high], signed, blank, masked);
  let box = null; // until it has a size; then it is drawn

  function layout(width) {
    const pen = canvas.getContext("2d");
    pen.font = FONT;
    const numbers = given.numbers !== false && exact && wide <= 16 && tall <= 64;
    const longest = Math.max(...some(rows, tall).map((word) => pen.measureText(label(word)).width), 0);
    const left = Math.min(WIDEST, Math.ceil(longest)) + 10;
    const room = Math.max(120, width - left - 2);
    let cw = Math.min(numbers ? 58 : 30, Math.floor(room / wide));
    const shown = numbers && cw >= 42;
    if (!shown) cw = Math.min(cw, 30);
    let ch = shown ? 26 : given.square ? cw : Math.max(cw, Math.min(22, Math.floor(480 / tall)));
    if (given.square && !shown) ch = cw = Math.max(1, Math.min(cw, Math.max(Math.floor(640 / tall), 2)));
    cw = Math.max(1, cw);
    ch = Math.max(1, Math.min(ch, 30));
    const high = Math.max(...some(columns, wide).map((word) => pen.measureText(label(word, 14)).width), 0);
    const flat = high + 6 <= cw;
    const top = flat ? 20 : Math.ceil(high) + 10;
    box = { left, top, cw, ch, shown, flat, width: left + wide * cw + 2, height: top + tall * ch + 2 };
  }

  const some = (words, few) => (words.length > 400 ? words.filter((_, i) => i % Math.ceil(words.length / 400) === 0) : words).slice(0, Math.max(few, 400));

  function draw() {
    if (!box) return;
    const ratio = window.devicePixelRatio || 1;
    const { left, top, cw, ch, width, height } = box;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    const [strong, pale] = [colour("--ink"), colour("--pale")];
    pen.scale(ratio, ratio);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(picture, left, top, wide * cw, tall * ch);
    pen.font = FONT;
    pen.direction = "ltr";
    pen.textBaseline = "middle";
    words(pen, rows, tall, ch, (i, word) => {
      pen.fillStyle = at && at[0] === i ? strong : pale;
      pen.textAlign = "right";
      pen.fillText(word, left - 6, top + (i + 0.5) * ch, WIDEST);
    });
    words(pen, columns, wide, cw, (i, word) => {
      pen.fillStyle = at && at[1] === i ? strong : pale;
      pen.save();
      pen.translate(left + (i + 0.5) * cw, top - 6);
      if (box.flat) pen.translate(0, -4);
      else pen.rotate(-Math.PI / 2);
      pen.textAlign = box.flat ? "center" : "left";
      pen.fillText(word, 0, 0);
      pen.restore();
    }, 14);
    if (box.shown) {
      pen.textAlign = "center";
      pen.font = "11px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace";
      for (let r = 0; r < tall; r++) {
        for (let c = 0; c < wide; c++) {
          const x = data[r * wide + c];
          const part = share(x, r * wide + c);
          pen.fillStyle = part < 0 ? pale : ink(signed, part);
          pen.fillText(part < 0 ? "·" : short(x), left + (c + 0.5) * cw, top + (r + 0.5) * ch);
        }
      }
    }
    if (at) {
      const [x, y] = [left + at[1] * cw, top + at[0] * ch];
      const least = [Math.max(cw, 6), Math.max(ch, 6)];
      pen.lineWidth = 4;
      pen.strokeStyle = colour("--ground");
      pen.strokeRect(x + (cw - least[0]) / 2, y + (ch - least[1]) / 2, ...least);
      pen.lineWidth = 2;
      pen.strokeStyle = colour("--mark");
      pen.strokeRect(x + (cw - least[0]) / 2, y + (ch - least[1]) / 2, ...least);
    }
  }

  /** As many words along a side as there is room for. */
  function words(pen, all, few, apart, write, longest) {
    const every = Math.max(1, Math.ceil(LEAST / apart));
    for (let i = 0; i < few; i += every) {
      write(i, label(all[span(i, all.length, few)[0]], longest));
    }
  }

  /** The same with words and lines that stay sharp at any size; the matrix itself is a picture in it. */
  function svg() {
    if (!box) layout(900);
    const { left, top, cw, ch, width, height, flat, shown } = box;
    const text = (x, y, words, anchor, more) => s("text", { x, y, "text-anchor": anchor, "dominant-baseline": "central", fill: colour("--pale"), ...more }, words);
    const parts = [s("image", { href: picture.toDataURL(), x: left, y: top, width: wide * cw, height: tall * ch, preserveAspectRatio: "none", "image-rendering": "pixelated" })];
    words(null, rows, tall, ch, (i, word) => parts.push(text(left - 6, top + (i + 0.5) * ch, word, "end")));
    words(null, columns, wide, cw, (i, word) => {
      const x = left + (i + 0.5) * cw;
      parts.push(flat ? text(x, top - 10, word, "middle") : text(x, top - 6, word, "start", { transform: `rotate(-90 ${x} ${top - 6})` }));
    }, 14);
    for (let i = 0; shown && i < data.length; i++) {
      const part = share(data[i], i);
      parts.push(text(left + ((i % wide) + 0.5) * cw, top + (Math.floor(i / wide) + 0.5) * ch, part < 0 ? "·" : short(data[i]), "middle", { "font-size": 11, fill: part < 0 ? colour("--pale") : ink(signed, part) }));
    }
    return s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "font-size": 12, "font-family": "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif" }, parts);
  }

  const named = (all, i, few) => {
    const [from, to] = span(i, all.length, few);
    return to - from > 1 ? `${label(all[from])} … ${label(all[to - 1])} (${from} to ${to - 1})` : label(all[from]);
  };

  function told(r, c) {
    const x = data[r * wide + c];
    const reason = exact && why ? why(r, c) : null;
    const value = reason ?? (x === undefined ? "" : `${exact ? "" : "at most "}${given.say ? given.say(x) : number(x)}`);
    return `${names[0]} ${named(rows, r, tall)}, ${names[1]} ${named(columns, c, wide)}, ${value}`;
  }

  function look(r, c, quiet) {
    at = [Math.max(0, Math.min(tall - 1, r)), Math.max(0, Math.min(wide - 1, c))];
    readout.textContent = told(...at);
    draw();
    if (!quiet && move) move(...at);
  }

  const under = (event) => {
    if (!box) return null;
    const frame = canvas.getBoundingClientRect();
    const c = Math.floor((event.clientX - frame.left - box.left) / box.cw);
    const r = Math.floor((event.clientY - frame.top - box.top) / box.ch);
    return r >= 0 && c >= 0 && r < tall && c < wide ? [r, c] : null;
  };
  const enter = (r, c) => {
    if (open && exact && !(why && why(r, c))) open(r, c);
  };
  canvas.addEventListener("mousemove", (event) => {
    const cell = under(event);
    if (cell && (!at || cell[0] !== at[0] || cell[1] !== at[1])) look(...cell, true);
  });
  canvas.addEventListener("click", (event) => {
    const cell = under(event);
    if (!cell) return;
    look(...cell);
    enter(...cell);
  });
  canvas.addEventListener("keydown", (event) => {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], PageUp: [-10, 0], PageDown: [10, 0] };
    const [r, c] = at ?? [0, -1];
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (steps[event.key]) look(r + steps[event.key][0], c + steps[event.key][1]);
    else if (event.key === "Home") look(event.shiftKey ? 0 : r, 0);
    else if (event.key === "End") look(event.shiftKey ? tall - 1 : r, wide - 1);
    else if (event.key === "Enter" || event.key === " ") enter(...(at ?? [0, 0]));
    else return;
    event.preventDefault();
    event.stopPropagation();
  });

  /** The rows and columns around what is looked at. */
  function numbers(many = [ROWS, COLUMNS]) {
    const first = [at?.[0] ?? 0, at?.[1] ?? 0].map((x, axis) =>
      Math.max(0, Math.min(x - many[axis] / 2, given.shape[axis] - many[axis])) | 0);
    const r = Array.from({ length: Math.min(many[0], tall) }, (_, i) => first[0] + i);
    const c = Array.from({ length: Math.min(many[1], wide) }, (_, i) => first[1] + i);
    const value = (i, j) => (exact && why && why(i, j) ? "masked" : number(data[i * wide + j]));
    return {
      cut: r.length < tall || c.length < wide,
      head: ["", ...c.map((j) => named(columns, j, wide))],
      rows: r.map((i) => [named(rows, i, tall), ...c.map((j) => value(i, j))]),
    };
  }

  const scale = h("p", { class: "scale" }, number(low), bar(signed), number(high),
    why ? h("span", { class: "masked" }, "masked") : null,
    exact ? null : h("span", { class: "pale" }, `each the largest of ${Math.ceil(T / tall)} × ${Math.ceil(S / wide)} neighbours`));
  const root = h("figure", { class: "grid" }, scroll, h("figcaption", {}, readout, scale), twin(() => {
    const { head, rows: body, cut } = numbers();
    return table(cut ? `${title}: the part around the chosen cell` : title, head, body);
  }));
  new ResizeObserver(() => {
    const width = scroll.clientWidth;
    if (!width || box?.room === width) return;
    layout(width);
    box.room = width;
    draw();
  }).observe(scroll);
  readout.textContent = at ? told(...at) : "Point at a cell, or move with the arrow keys.";
  return { root, canvas, svg, csv: () => numbers([Infinity, Infinity]), look };
}

function bar(signed) {
  const canvas = h("canvas", { class: "bar", width: 96, height: 1, "aria-hidden": "true" });
  const pen = canvas.getContext("2d");
  for (let i = 0; i < 96; i++) {
    pen.fillStyle = css(signed, i / 95);
    pen.fillRect(i, 0, 1, 1);
  }
  return canvas;
}

function limits(data) {
  let [low, high] = [Infinity, -Infinity];
  for (let i = 0; i < data.length; i++) {
    const x = data[i];
    if (x < low && x > -Infinity) low = x;
    if (x > high && x < Infinity) high = x;
  }
  return low <= high ? [low, high] : [0, 0];
}

/** A number that fits into a cell. */
function short(x) {
  const text = Math.abs(x) >= 1000 ? x.toExponential(0) : x.toFixed(Math.abs(x) >= 100 ? 0 : Math.abs(x) >= 10 ? 1 : 2);
  return text.replace("-", "−");
}
