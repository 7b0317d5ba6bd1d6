/* Where a model looked in a picture: for a ViT from the class token or any patch, for captions word by word. */

import { choice, h, label, number, table, tabs, twin } from "./dom.js";
import { chosen } from "./attention.js";

/** Bytes (C, H, W) lit by weights (R × C): dark where nothing was looked at; each region as it was weighed. */
function lit({ shape: [C, H, W], data }, weights, grid, mark) {
  const scale = Math.max(1, Math.round(384 / Math.max(H, W)));
  const canvas = h("canvas", { width: W * scale, height: H * scale, "aria-hidden": "true" });
  const image = new ImageData(W, H);
  const [R, S] = grid;
  const peak = weights ? Math.max(...weights, 1e-30) : 1;
  for (let y = 0; y < H; y++) {
    for (let x = 0; x < W; x++) {
      const w = weights ? weights[Math.floor((y * R) / H) * S + Math.floor((x * S) / W)] / peak : null;
      for (let c = 0; c < 3; c++) {
        const v = data[((C === 1 ? 0 : c) * H + y) * W + x];
        image.data[4 * (y * W + x) + c] = w === null ? v : (0.3 + 0.4 * w) * v + 0.3 * w * 255;
      }
      image.data[4 * (y * W + x) + 3] = 255;
    }
  }
  const small = document.createElement("canvas");
  [small.width, small.height] = [W, H];
  small.getContext("2d").putImageData(image, 0, 0);
  const pen = canvas.getContext("2d");
  pen.imageSmoothingEnabled = false;
  pen.drawImage(small, 0, 0, W * scale, H * scale);
  if (mark !== null && mark !== undefined) {
    pen.strokeStyle = "#e69f00";
    pen.lineWidth = 4;
    const [h1, w1] = [(H * scale) / R, (W * scale) / S];
    pen.strokeRect((mark % S) * w1 + 2, Math.floor(mark / S) * h1 + 2, w1 - 4, h1 - 4);
  }
  return canvas;
}

const mean = ({ shape: [H, T, S], data }, head) => {
  const found = new Float32Array(T * S);
  for (let n = 0; n < H; n++) if (head === null || n === head) for (let i = 0; i < found.length; i++) found[i] += data[n * T * S + i] / (head === null ? H : 1);
  return { T, S, data: found };
};

export const picture = {
  async show(root, app) {
    const { manifest, state, go, source } = app;
    const captions = Boolean(manifest.attentions.cross);
    const { layers, layer, one } = chosen(app, [captions ? "cross" : "self"]);
    const head = state.head === undefined || one.heads === 1 ? null : Math.min(Math.max(0, Number(state.head) | 0), one.heads - 1);
    const pixels = await source.tensor("pixels");
    const bar = h("div", { class: "controls" });
    const heads = () => [
      layers.length > 1 ? choice("layer", "layer", layers.map((other) => [other.layer, other.layer]), layer, (to) => go({ layer: to }, { replace: true })) : "",
      one.heads > 1 ? choice("head", "head", [["", "mean of all"], ...Array.from({ length: one.heads }, (_, i) => [i, i])], head ?? "", (to) => go({ head: to }, { replace: true })) : ""];
    const [R, S] = manifest.grid;
    const region = (weights) => Array.from({ length: R }, (_, r) => [`row ${r}`, ...Array.from({ length: S }, (_, c) => number(weights[r * S + c]))]);
    const columns = ["", ...Array.from({ length: S }, (_, c) => `column ${c}`)];
    if (captions) {
      const { S: many, data } = mean(await source.tensor(`${one.name}.weights`), head);
      const words = manifest.tokens.written;
      const word = Math.min(Math.max(0, Number(state.word ?? 0) | 0), words.length - 1);
      const of = (i) => data.subarray(i * many, (i + 1) * many);
      bar.append(...heads());
      const strip = h("div", { class: "strip" }, words.map((w, i) => h("button", { type: "button", id: `word-${i}`, "aria-pressed": String(i === word), onclick: () => go({ word: i }, { replace: true }) }, lit(pixels, of(i), manifest.grid), label(w))));
      const large = lit(pixels, of(word), manifest.grid);
      app.current = { name: `picture-${word}`, canvas: large, csv: () => ({ head: columns, rows: region(of(word)) }) };
      root.append(bar, h("h2", {}, manifest.answer ? label(manifest.answer, 80) : "Where each word looked", h("small", { class: "pale" }, "the picture is lit where the word looked")),
        h("div", { class: "large" }, lit(pixels, null, manifest.grid), large), strip,
        twin(() => table(`Where “${label(words[word])}” looked`, columns, region(of(word)))));
      return;
    }
    const from = ["class", "rollout", "patch"].includes(state.from) ? state.from : "class";
    bar.append(tabs("from", [["class", "What stands for the picture"], ["patch", "A patch"], ["rollout", "Rollout"]], from, (to) => go({ from: to }, { replace: true })), ...(from === "rollout" ? [] : heads()));
    const { T, data } = from === "rollout" ? { T: manifest.tensors.rollout.shape[0], data: (await source.tensor("rollout")).data } : mean(await source.tensor(`${one.name}.weights`), head);
    const first = T - R * S;
    const patch = Math.min(Math.max(0, Number(state.patch ?? Math.floor((R * S) / 2)) | 0), R * S - 1);
    let weights = new Float32Array(R * S);
    if (from === "patch") weights = data.slice((first + patch) * T + first, (first + patch + 1) * T);
    else if (first) weights = data.slice(first, T);
    else for (let i = 0; i < T; i++) for (let j = 0; j < T; j++) weights[j] += data[i * T + j] / T;
    const shown = lit(pixels, weights, manifest.grid, from === "patch" ? patch : null);
    const left = lit(pixels, null, manifest.grid, from === "patch" ? patch : null);
    Object.entries({ id: "patches", tabindex: "0", role: "application", "aria-roledescription": "patches", "aria-label": `The picture, ${R} × ${S} patches. Arrow keys choose one.` }).forEach(([k, v]) => left.setAttribute(k, v));
    left.removeAttribute("aria-hidden");
    const readout = h("p", { class: "readout", role: "status", "aria-live": "polite" });
    const best = weights.indexOf(Math.max(...weights));
    const who = { patch: `patch ${patch} (row ${Math.floor(patch / S)}, column ${patch % S}) looks most at`, rollout: "through all layers, most came from", class: "it looks most at" };
    readout.textContent = `${who[from]} row ${Math.floor(best / S)}, column ${best % S}: ${number(weights[best])}`;
    const pick = (n) => n >= 0 && n < R * S && go({ from: "patch", patch: n }, { replace: true });
    left.addEventListener("click", (event) => {
      const frame = left.getBoundingClientRect();
      pick(Math.floor(((event.clientY - frame.top) / frame.height) * R) * S + Math.floor(((event.clientX - frame.left) / frame.width) * S));
    });
    left.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -S, ArrowDown: S }[event.key];
      if (!by) return;
      event.preventDefault();
      event.stopPropagation();
      pick(patch + by);
    });
    app.current = { name: `picture-${from}`, canvas: shown, csv: () => ({ head: columns, rows: region(weights) }) };
    root.append(bar, h("h2", {}, manifest.answer ?? "Where it looked", h("small", { class: "pale" }, "click a patch of the picture on the left")),
      h("div", { class: "large" }, left, shown), readout, twin(() => table("Weights of the patches", columns, region(weights))));
  },
};
