/* All heads of all layers at once; Enter or a click opens one. */

import { Canvas } from "./canvas.js";
import { imageCanvas, palette, themeColour } from "./colour.js";
import { arrowKeys, formatNumber, h, range, tableTwin, tabs } from "./dom.js";
import { PART_TITLES, heading, selectHead, tokenRow } from "./selection.js";

const SMALL = 96; // numbers of a head each way
const [LEFT, TOP, GAP] = [52, 22, 8];

/** @type {[keyof HeadKinds, string, string][]} */
const KINDS = [
  ["entropy", "entropy", "how many tokens it looks at, in bits"],
  ["diagonal", "itself", "how much goes to the token itself"],
  ["previous", "previous", "how much goes to the previous token"],
  ["first", "first", "how much goes to the first token"],
];

/**
 * What is known of each head: between other tokens, nothing is itself or previous.
 * @param {AttentionInfo[]} layers
 */
const knownKinds = (layers) => KINDS.filter(([name]) => layers[0].kinds[0]?.[name] !== undefined);

/** @typedef {{ width: number, height: number, cellWidth: number, cellHeight: number }} AtlasLayout */
/** @typedef {{ canvas: HTMLCanvasElement, T: number, S: number }} LayerImage */

/**
 * @param {HTMLElement} root
 * @param {App} app
 * @param {AttentionPart} part
 * @param {AttentionInfo[]} layers
 */
export async function showAtlas(root, app, part, layers) {
  const { state, go, source } = app;
  const heads = Math.max(...layers.map((layer) => layer.heads));
  const weights = await Promise.all(layers.map(({ name }) =>
    source.tensor(`${name}.weights`, { most: SMALL, as: "uint8" })));
  const kinds = knownKinds(layers);
  const kind = kinds.find(([name]) => name === state.by);
  const choices = kinds.map(([name, words]) => /** @type {[string, string]} */ ([name, words]));
  root.append(h("div", { class: "controls" }, h("span", { class: "pale" }, "frame by"),
    tabs("by", [["none", "nothing"], ...choices], kind?.[0] ?? "none",
      (to) => go({ by: to === "none" ? null : to }, { replace: true }))));
  const title = `${PART_TITLES[part]} attention: ${layers.length} layers × ${heads} heads`;
  const atlas = new Atlas(app, title, layers, weights.map(layerImage), kind?.[0] ?? null);
  const numbers = () => ({
    head: ["layer, head", ...kinds.map(([, words]) => words)],
    rows: layers.flatMap(({ layer, kinds: each }) => each.map((values, i) =>
      [`${layer}, ${i}`, ...kinds.map(([name]) => formatNumber(values[name]))])),
  });
  app.current = { name: `atlas-${part}`, ...atlas.view.output, csv: numbers };
  root.append(heading(title, kind?.[2] ?? "each from 0 to its largest"),
    atlas.view.figure({}, null, tableTwin(title, numbers)));
}

/** @type {(weights: Tensor) => LayerImage} */
function layerImage({ shape: [heads, T, S], data }) {
  const image = new ImageData(S, heads * T);
  const [pixels, colours] = [new Uint32Array(image.data.buffer), palette(false)];
  for (let i = 0; i < pixels.length; i++) pixels[i] = colours[data[i]];
  return { canvas: imageCanvas(image), T, S };
}

class Atlas {
  /**
   * @param {App} app
   * @param {string} title
   * @param {AttentionInfo[]} layers
   * @param {LayerImage[]} images
   * @param {keyof HeadKinds | null} kind what the frames show
   */
  constructor(app, title, layers, images, kind) {
    this.layers = layers;
    this.images = images;
    this.kind = kind;
    const [{ rows }, { T }] = [layers[0], images[0]];
    this.row = tokenRow(app, rows, app.manifest.tokens[rows].length, T); // of the selected token
    this.heads = Math.max(...layers.map((layer) => layer.heads));
    const values = layers.flatMap(({ kinds }) => kinds.map((each) => (kind ? each[kind] ?? 0 : 1)));
    this.peak = Math.max(...values);
    const { attention, head } = selectHead(app);
    /** @type {Place} the layer's number among `layers`, and the head */
    this.at = [layers.indexOf(attention), head];
    const open = () => {
      app.go({ form: "map", layer: layers[this.at[0]].layer, head: this.at[1], cell: null });
    };
    /** @type {Canvas<AtlasLayout, Place>} */
    this.view = new Canvas({
      id: "atlas",
      role: "atlas",
      label: `${title}. Arrow keys move, Enter opens a head.`,
      layout: (room) => this.layout(room),
      draw: (pen, layout) => this.draw(pen, layout),
      hit: (x, y, layout) => this.hit(x, y, layout),
      hover: ([l, i]) => (l === this.at[0] && i === this.at[1] ? null : this.look(l, i)),
      click: (place) => {
        this.at = place;
        open();
      },
      keys: {
        ...arrowKeys((down, right) => {
          this.look(this.at[0] + down, this.at[1] + right);
          const [l, head] = this.at;
          app.go({ part: selectHead(app).part, layer: layers[l].layer, head }, { quiet: true });
        }),
        Enter: open,
      },
    });
    this.view.readout.textContent = this.describe(this.at);
  }

  /** @type {(room: number) => AtlasLayout} */
  layout(room) {
    const { T, S } = this.images[0];
    const cellWidth = Math.max(24, Math.min(136, Math.floor((room - LEFT) / this.heads) - GAP));
    const tall = Math.round(cellWidth * Math.min(2, Math.max(0.5, T / S)));
    const cellHeight = Math.max(20, Math.min(200, tall));
    const width = LEFT + this.heads * (cellWidth + GAP);
    return { cellWidth, cellHeight, width, height: TOP + this.layers.length * (cellHeight + GAP) };
  }

  /** @type {(pen: CanvasRenderingContext2D, layout: AtlasLayout) => void} */
  draw(pen, layout) {
    const { cellWidth, cellHeight } = layout;
    pen.font = "11px system-ui";
    pen.fillStyle = themeColour("--pale");
    pen.textAlign = "center";
    for (const i of range(this.heads)) {
      const x = LEFT + i * (cellWidth + GAP) + cellWidth / 2;
      pen.fillText(cellWidth > 44 ? `head ${i}` : String(i), x, TOP / 2);
    }
    pen.textAlign = "left";
    this.layers.forEach(({ layer, heads }, l) => {
      const y = TOP + l * (cellHeight + GAP);
      pen.fillText(`layer ${layer}`, 0, y + cellHeight / 2);
      pen.imageSmoothingEnabled = this.images[l].T > cellHeight;
      for (const i of range(heads)) this.drawHead(pen, layout, l, i);
    });
  }

  /** @type {(pen: CanvasRenderingContext2D, layout: AtlasLayout, l: number, i: number) => void} */
  drawHead(pen, { cellWidth, cellHeight }, l, i) {
    const [x, y] = [LEFT + i * (cellWidth + GAP), TOP + l * (cellHeight + GAP)];
    const { canvas, T, S } = this.images[l];
    pen.drawImage(canvas, 0, i * T, S, T, x, y, cellWidth, cellHeight);
    if (this.row !== null) {
      const height = Math.max(4, cellHeight / T);
      pen.strokeStyle = themeColour("--mark");
      pen.lineWidth = 1.5;
      pen.strokeRect(x, y + ((this.row + 0.5) * cellHeight) / T - height / 2, cellWidth, height);
    }
    if (this.kind) {
      pen.globalAlpha = (this.layers[l].kinds[i][this.kind] ?? 0) / (this.peak || 1);
      pen.strokeStyle = themeColour("--mark");
      pen.lineWidth = 4;
      pen.strokeRect(x, y, cellWidth, cellHeight);
      pen.globalAlpha = 1;
    }
    if (l === this.at[0] && i === this.at[1]) {
      pen.strokeStyle = themeColour("--ink");
      pen.lineWidth = 2;
      pen.strokeRect(x - 2, y - 2, cellWidth + 4, cellHeight + 4);
    }
  }

  /** @type {(place: Place) => string} */
  describe([l, i]) {
    const { layer, kinds } = this.layers[l];
    const values = knownKinds(this.layers).map(([name, words]) => `${words} ${kinds[i][name]?.toFixed(2)}`);
    return `layer ${layer}, head ${i}: ${values.join(", ")}`;
  }

  /** @type {(l: number, i: number) => void} */
  look(l, i) {
    const layer = Math.max(0, Math.min(this.layers.length - 1, l));
    this.at = [layer, Math.max(0, Math.min(this.layers[layer].heads - 1, i))];
    this.view.readout.textContent = this.describe(this.at);
    this.view.redraw();
  }

  /** @type {(x: number, y: number, layout: AtlasLayout) => Place | null} */
  hit(x, y, { cellWidth, cellHeight }) {
    const i = Math.floor((x - LEFT) / (cellWidth + GAP));
    const l = Math.floor((y - TOP) / (cellHeight + GAP));
    return this.layers[l] && i >= 0 && i < this.layers[l].heads ? [l, i] : null;
  }
}
