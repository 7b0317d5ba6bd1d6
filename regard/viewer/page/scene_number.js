/* One number, with the sum that made it. */

import { h } from "./dom.js";
import { openCell } from "./cell.js";

/** @type {(app: App, scene: import("./scene_data.js").Scene) => Promise<import("./scene.js").Depth>} */
export async function numberDepth(app) {
  const address = app.state.cell ?? "";
  const text = app.manifest.texts[address.slice(0, address.lastIndexOf(":"))];
  const panel = await openCell(app, address);
  return {
    draw: (root) => root.append(panel),
    sentence: () => [h("b", {}, "One number: "), text?.about ?? "",
      " Every term is the model's own; the page adds them up again and ticks the sum off."],
  };
}
