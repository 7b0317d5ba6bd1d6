/* Ctrl and the wheel, two fingers on a touch pad, or a pinch on a screen move between the depths of the
   scene: the picture follows, and past a threshold the next depth opens. */

const ENOUGH = 150; // pixels of the wheel
const LARGER = 1.4; // times, which as many pixels stand for
const REST = 250; // milliseconds after which it falls back
const PAUSE = 700; // milliseconds until the next depth

let opened = -PAUSE; // when a depth was opened

/**
 * @param {HTMLElement} stage
 * @param {HTMLElement} layer what follows
 * @param {(by: number) => void} move one depth in or out
 */
export function zoomByGestures(stage, layer, move) {
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
    const scale = LARGER ** (turned / ENOUGH);
    const times = frame.width / stage.clientWidth; // larger than its pixels, on a projector
    const x = (target.x + target.width / 2 - frame.x - frame.width / 2) / times;
    const y = (target.y + target.height / 2 - frame.y - frame.height / 2) / times;
    layer.style.transform = `translate(${x * (1 - scale)}px, ${y * (1 - scale)}px) scale(${scale})`;
  };
  /** Follow so far; returns whether the next depth is open. @type {(to: number) => boolean} */
  const turnTo = (to) => {
    if (performance.now() < opened + PAUSE) return false;
    turned = to;
    if (!still) follow();
    if (Math.abs(turned) < ENOUGH) return false;
    opened = performance.now();
    move(Math.sign(turned));
    return true;
  };
  stage.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault(); // the browser's own zoom
    clearTimeout(timer);
    timer = setTimeout(fallBack, REST);
    turnTo(turned - event.deltaY);
  }, { passive: false });
  listenToPinch(stage, (times) => turnTo((ENOUGH * Math.log(times)) / Math.log(LARGER)), fallBack);
}

/**
 * Two fingers that move apart or together.
 * @param {HTMLElement} stage
 * @param {(times: number) => boolean} pinch how many times as far apart as at first; true: that is enough
 * @param {() => void} end
 */
function listenToPinch(stage, pinch, end) {
  /** @type {Map<number, [x: number, y: number]>} */
  const fingers = new Map();
  let first = 0; // how far apart they were; 0: no pinch
  const apart = () => {
    const [[x0, y0], [x1, y1]] = fingers.values();
    return Math.hypot(x1 - x0, y1 - y0);
  };
  stage.addEventListener("pointerdown", ({ pointerType, pointerId, clientX, clientY }) => {
    if (pointerType !== "touch") return;
    fingers.set(pointerId, [clientX, clientY]);
    first = fingers.size === 2 ? apart() : 0;
  });
  stage.addEventListener("pointermove", ({ pointerId, clientX, clientY }) => {
    if (!fingers.has(pointerId)) return;
    fingers.set(pointerId, [clientX, clientY]);
    if (first && pinch(apart() / first)) first = 0;
  });
  const lift = (/** @type {PointerEvent} */ { pointerId }) => {
    if (!fingers.delete(pointerId) || !first) return;
    first = 0;
    end();
  };
  stage.addEventListener("pointerup", lift);
  stage.addEventListener("pointercancel", lift);
}
