/* The scene as one drawing: boxes where they stand on the page, words as text, canvases as images. */

import { penOf } from "./colour.js";
import { h, range, s, svgRoot } from "./dom.js";

/** @typedef {import("./scene_layout.js").Box} Box */
/**
 * @typedef {{ frame: DOMRect, times: number, scrolled: number,
 *   parts: [z: number, part: SVGElement][] }} Page */
/** What a part of the page takes over from what it stands in.
 * @typedef {{ z: number, opacity: number, clip: Box | null }} Inherited */

const SHAPE_STYLES = [
  "fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "fill-opacity", "opacity",
  "font-size", "font-weight", "text-anchor", "paint-order", "font-variant-numeric",
];
const SIDES = ["Top", "Right", "Bottom", "Left"];
const SHARP = 2; // pixels of an image for each of the page
const RING = /^(.*\)) 0px 0px 0px ([\d.]+)px$/; // a shadow that is a second border
const SAME_LINE = 3; // pixels

/**
 * What a layer of the scene shows now, also where it has to be scrolled to.
 * @param {HTMLElement} layer
 */
export function sceneDrawing(layer) {
  const frame = layer.getBoundingClientRect();
  /** @type {Page} */
  const page = { frame, times: frame.width / layer.offsetWidth, scrolled: layer.scrollTop, parts: [] };
  for (const child of layer.children) addElement(page, child, { z: 0, opacity: 1, clip: null });
  page.parts.sort(([a], [b]) => a - b);
  return svgRoot(layer.clientWidth, layer.scrollHeight, {}, page.parts.map(([, part]) => part));
}

/** In pixels of the layer. @type {(page: Page, rect: DOMRect) => Box} */
const toBox = ({ frame, times, scrolled }, { x, y, width, height }) => ({
  x: (x - frame.x) / times, y: (y - frame.y) / times + scrolled, width: width / times, height: height / times,
});

/** @type {(page: Page, element: Element, inherited: Inherited) => void} */
function addElement(page, element, inherited) {
  const style = getComputedStyle(element);
  if (style.display === "none" || style.visibility === "hidden") return;
  const box = toBox(page, element.getBoundingClientRect());
  const z = style.zIndex === "auto" ? inherited.z : Number(style.zIndex);
  const opacity = inherited.opacity * Number(style.opacity);
  /** @type {Inherited} */
  const here = { ...inherited, z, opacity };
  const add = (/** @type {SVGElement | null} */ part) => {
    if (part) addPart(page, part, box, here);
  };
  if (element instanceof SVGSVGElement) return add(copyShapes(element, box));
  if (element instanceof HTMLCanvasElement) return add(copyCanvas(element, style, box));
  boxShapes(element, style, box).forEach(add);
  add(formulaLine(page, element, style, box));
  const cut = style.overflow !== "visible"
    && (element.scrollWidth > element.clientWidth || element.scrollHeight > element.clientHeight);
  const inside = cut ? { ...here, clip: inherited.clip ? common(inherited.clip, box) : box } : here;
  for (const child of element.childNodes) {
    if (child instanceof Element) addElement(page, child, inside);
    else if (child instanceof Text) addText(page, child, style, inside);
  }
}

/** What two boxes have in common. @type {(a: Box, b: Box) => Box} */
function common(a, b) {
  const [x, y] = [Math.max(a.x, b.x), Math.max(a.y, b.y)];
  return {
    x, y, width: Math.max(0, Math.min(a.x + a.width, b.x + b.width) - x),
    height: Math.max(0, Math.min(a.y + a.height, b.y + b.height) - y),
  };
}

/** Add a part, without what is cut off.
 * @type {(page: Page, part: SVGElement, box: Box, how: Inherited) => void} */
function addPart(page, part, box, { z, opacity, clip }) {
  if (opacity < 1) part.setAttribute("opacity", String(opacity));
  if (!clip) return void page.parts.push([z, part]);
  const seen = common(clip, box);
  if (seen.width < 1 || seen.height < 1) return undefined;
  const { x, y, width, height } = clip;
  const whole = seen.width > box.width - 1 && seen.height > box.height - 1;
  page.parts.push([z, whole ? part
    : s("svg", { ...clip, viewBox: `${x} ${y} ${width} ${height}` }, part)]);
  return undefined;
}

/** @type {Map<string, { colour: string, alpha: number }>} */
const colours = new Map();
const sample = penOf(h("canvas", { width: 1, height: 1 }));

/** A colour in any notation as every program reads it. @param {string} css */
function plainColour(css) {
  const known = colours.get(css);
  if (known) return known;
  sample.clearRect(0, 0, 1, 1);
  sample.fillStyle = css;
  sample.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = sample.getImageData(0, 0, 1, 1).data;
  const colour = `#${[r, g, b].map((x) => x.toString(16).padStart(2, "0")).join("")}`;
  colours.set(css, { colour, alpha: a / 255 });
  return { colour, alpha: a / 255 };
}

/** @param {string} css */
const shapeColour = (css) => (plainColour(css).alpha ? plainColour(css).colour : "none");

/** @type {(css: string) => Attributes} */
const filled = (css) => {
  const { colour, alpha } = plainColour(css);
  return { fill: colour, ...(alpha < 1 ? { "fill-opacity": alpha.toFixed(3) } : {}) };
};

/** @type {(css: string, width: number) => Attributes} */
const stroked = (css, width) => {
  const { colour, alpha } = plainColour(css);
  return {
    stroke: colour, "stroke-width": width, fill: "none",
    ...(alpha < 1 ? { "stroke-opacity": alpha.toFixed(3) } : {}),
  };
};

/** A rectangle, larger by so much on each side.
 * @type {(box: Box, by: number, rx: number, how: Attributes) => SVGElement} */
const rectangle = ({ x, y, width, height }, by, rx, how) => s("rect", {
  x: x - by, y: y - by, width: Math.max(0, width + 2 * by), height: Math.max(0, height + 2 * by),
  ...(rx + by > 0 ? { rx: rx + by } : {}), ...how,
});

/** The background of an element, its borders and its rings.
 * @type {(element: Element, style: CSSStyleDeclaration, box: Box) => SVGElement[]} */
function boxShapes(element, style, box) {
  const rx = Math.min(parseFloat(style.borderTopLeftRadius) || 0, box.width / 2, box.height / 2);
  const shapes = [];
  const [, ring, spread] = style.boxShadow.match(RING) ?? [];
  if (ring) shapes.push(rectangle(box, Number(spread) / 2, rx, stroked(ring, Number(spread))));
  const ground = style.backgroundColor;
  if (plainColour(ground).alpha) shapes.push(rectangle(box, 0, rx, filled(ground)));
  const borders = SIDES.map((side) => {
    const of = (/** @type {string} */ what) => style.getPropertyValue(`border-${side.toLowerCase()}-${what}`);
    return { width: parseFloat(of("width")) || 0, colour: of("color"), dashed: of("style") === "dashed" };
  });
  const [{ width, colour, dashed }] = borders;
  const dash = dashed ? { "stroke-dasharray": `${3 * width} ${2 * width}` } : {};
  if (borders.every((one) => one.width === width && one.colour === colour)) {
    if (width && plainColour(colour).alpha) {
      shapes.push(rectangle(box, -width / 2, rx, { ...stroked(colour, width), ...dash }));
    }
  } else shapes.push(...borders.flatMap((one, i) => (one.width ? [edge(box, i, one)] : [])));
  const outline = element === document.activeElement || style.outlineStyle === "none"
    ? 0 : parseFloat(style.outlineWidth);
  if (outline) {
    const by = parseFloat(style.outlineOffset) + outline / 2;
    shapes.push(rectangle(box, by, rx, stroked(style.outlineColor, outline)));
  }
  return shapes;
}

/** The line of a fraction, or of a root.
 * @type {(page: Page, element: Element, style: CSSStyleDeclaration, box: Box) => SVGElement | null} */
function formulaLine(page, element, style, box) {
  if (element.localName === "msqrt") {
    const [x, y] = [box.x + 8, box.y + 1];
    const tall = box.height;
    const d = `M${x - 7},${y + 0.6 * tall} l3,-2 l4,${0.4 * tall} L${x},${y} H${box.x + box.width}`;
    return s("path", { d, ...stroked(style.color, 1) });
  }
  if (element.localName !== "mfrac") return null;
  const [above, below] = Array.from(element.children, (one) => toBox(page, one.getBoundingClientRect()));
  const y = (above.y + above.height + below.y) / 2;
  return s("line", { x1: box.x, x2: box.x + box.width, y1: y, y2: y, ...stroked(style.color, 1) });
}

/** One of four borders.
 * @type {(box: Box, side: number, border: { width: number, colour: string }) => SVGElement} */
function edge({ x, y, width, height }, side, border) {
  const half = border.width / 2;
  const [left, right, top, bottom] = [x + half, x + width - half, y + half, y + height - half];
  const [x1, y1, x2, y2] = [
    [x, top, x + width, top], [right, y, right, y + height], [x, bottom, x + width, bottom],
    [left, y, left, y + height]][side];
  return s("line", { x1, y1, x2, y2, ...stroked(border.colour, border.width) });
}

/** A drawing with its own styles, where it stands.
 * @type {(drawing: SVGSVGElement, box: Box) => SVGElement} */
function copyShapes(drawing, { x, y }) {
  const copy = /** @type {SVGSVGElement} */ (drawing.cloneNode(true));
  const [from, to] = [drawing, copy].map((one) => [...one.querySelectorAll("*")]);
  const unseen = [];
  for (const i of range(from.length)) {
    const style = getComputedStyle(from[i]);
    const { dataset } = /** @type {SVGElement} */ (to[i]);
    for (const name of Object.keys(dataset)) delete dataset[name];
    to[i].removeAttribute("class");
    if (style.display === "none") unseen.push(to[i]);
    else if (from[i] instanceof SVGGElement) continue;
    else {
      for (const name of SHAPE_STYLES) {
        const value = style.getPropertyValue(name);
        const isColour = (name === "fill" || name === "stroke") && value !== "none";
        to[i].setAttribute(name, isColour ? shapeColour(value) : value);
      }
    }
  }
  for (const one of unseen) one.remove();
  return s("g", { transform: `translate(${x} ${y})` }, ...copy.childNodes);
}

/** A canvas as an image; the pixels of a matrix stay squares in every program.
 * @type {(canvas: HTMLCanvasElement, style: CSSStyleDeclaration, box: Box) => SVGElement | null} */
function copyCanvas(canvas, style, box) {
  if (!canvas.width || !canvas.height) return null;
  let image = canvas;
  if (style.imageRendering === "pixelated") {
    const [wide, tall] = [[box.width, canvas.width], [box.height, canvas.height]].map(([room, count]) =>
      count * Math.max(1, Math.ceil((SHARP * room) / count)));
    image = h("canvas", { width: wide, height: tall });
    const pen = penOf(image);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(canvas, 0, 0, wide, tall);
  }
  return s("image", { ...box, href: image.toDataURL(), preserveAspectRatio: "none" });
}

/** @typedef {{ text: string, rect: DOMRect }} Line */

/** The lines that a text stands in. @type {(node: Text, upright: boolean) => Line[]} */
function linesOf(node, upright) {
  const area = document.createRange();
  /** @type {(Line & { from: number })[]} */
  const lines = [];
  for (const { index, 0: word } of node.data.matchAll(/\S+/g)) {
    area.setStart(node, index);
    area.setEnd(node, index + word.length);
    const rect = area.getBoundingClientRect();
    const before = lines[lines.length - 1];
    const near = before && Math.abs(upright ? rect.x - before.rect.x : rect.y - before.rect.y) < SAME_LINE;
    const from = near ? before.from : index;
    area.setStart(node, from);
    const text = node.data.slice(from, index + word.length);
    const line = { from, text, rect: near ? area.getBoundingClientRect() : rect };
    if (near) lines[lines.length - 1] = line;
    else lines.push(line);
  }
  return lines;
}

/** What there is room for, in the font of the sample. @type {(text: string, room: number) => string} */
function shorten(text, room) {
  let letters = text;
  while (letters && sample.measureText(`${letters}…`).width > room) letters = letters.slice(0, -1);
  return `${letters.trimEnd()}…`;
}

/** @type {(page: Page, node: Text, style: CSSStyleDeclaration, inherited: Inherited) => void} */
function addText(page, node, style, inherited) {
  const upright = style.writingMode.startsWith("vertical"); // and turned around: it is read from below
  sample.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  const { fontBoundingBoxAscent: above, fontBoundingBoxDescent: below } = sample.measureText("x");
  const isVariable = node.parentElement?.localName === "mi" && node.data.length === 1;
  const family = style.fontFamily === getComputedStyle(document.body).fontFamily ? null : style.fontFamily;
  for (const { text, rect } of linesOf(node, upright)) {
    const box = toBox(page, rect);
    const { x, y, width, height } = box;
    const base = ((upright ? width : height) - above - below) / 2 + above;
    const turn = `translate(${x + base} ${y + height}) rotate(-90)`;
    const at = upright ? { transform: turn } : { x, y: y + base };
    const { clip } = inherited;
    const room = clip && (upright ? clip.height : clip.x + clip.width - x);
    const isCut = room !== null && style.textOverflow === "ellipsis" && (upright ? height : width) > room + 1;
    addPart(page, s("text", {
      ...at, ...filled(style.color), "font-size": style.fontSize, "font-weight": style.fontWeight,
      "font-family": family && `${family}, serif`, "font-style": isVariable ? "italic" : null,
      "text-decoration": style.textDecorationLine === "none" ? null : style.textDecorationLine,
    }, isCut ? shorten(text, room) : text.replaceAll(/\s+/g, " ")), box,
    isCut ? { ...inherited, clip: null } : inherited);
  }
}
