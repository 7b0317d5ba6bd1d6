/* Ctrl and the wheel, or two fingers on a touch pad, move between the depths of the scene: the picture
   follows, and past a threshold the next depth opens. */

const ENOUGH = 150; // pixels of the wheel
const REST = 250; // milliseconds after which it falls back
const PAUSE = 700; // milliseconds until the next depth

let opened = -PAUSE; // when a depth was opened

/**
 * @param {HTMLElement} stage
 * @param {HTMLElement} layer what follows the wheel
 * @param {(by: number) => void} move one depth in or out
 */
export function zoomByWheel(stage, layer, move) {
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  let turned = 0;
  let timer = 0;
  const fallBack = () => {
    turned = 0;
    layer.style.transform = "";
  };
  const follow = () => {
    layer.style.transform = "";
    const [frame, target] = [stage, layer.querySelector("[data-zoom]") ?? stage]
      .map((one) => one.getBoundingClientRect());
    const scale = 1.4 ** (turned / ENOUGH);
    const times = frame.width / stage.clientWidth; // larger than its pixels, on a projector
    const x = (target.x + target.width / 2 - frame.x - frame.width / 2) / times;
    const y = (target.y + target.height / 2 - frame.y - frame.height / 2) / times;
    layer.style.transform = `translate(${x * (1 - scale)}px, ${y * (1 - scale)}px) scale(${scale})`;
  };
  stage.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault(); // the browser's own zoom
    if (performance.now() < opened + PAUSE) return;
    turned -= event.deltaY;
    if (!still) follow();
    clearTimeout(timer);
    timer = setTimeout(fallBack, REST);
    if (Math.abs(turned) < ENOUGH) return;
    opened = performance.now();
    move(Math.sign(turned));
  }, { passive: false });
}
