/* A recording from the microphone, as a WAV file like those from a disk. */

import { alertBox, h, messageOf } from "./dom.js";

const RATE = 16_000; // samples a second
const LARGEST = 2 ** 15 - 1; // of a sample of 16 bits

/** @type {MediaRecorder | null} */
let recorder = null;

/** Samples of one channel as a WAV file of 16 bits.
 * @param {Float32Array} samples */
export function toWav(samples) {
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const write = (/** @type {number} */ at, /** @type {string} */ word) =>
    [...word].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  write(0, "RIFF");
  view.setUint32(4, view.byteLength - 8, true);
  write(8, "WAVEfmt ");
  view.setUint32(16, 16, true); // bytes about the format: PCM, one channel
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, RATE, true);
  view.setUint32(28, 2 * RATE, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  write(36, "data");
  view.setUint32(40, 2 * samples.length, true);
  samples.forEach((x, i) =>
    view.setInt16(44 + 2 * i, Math.round(LARGEST * Math.max(-1, Math.min(1, x))), true));
  return new File([view], "microphone.wav", { type: "audio/wav" });
}

/** Record until somebody stops it; the recording then goes to `take`.
 * @param {(file: File) => void} take */
async function record(take) {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
  /** @type {Blob[]} */
  const parts = [];
  const started = new MediaRecorder(stream);
  started.ondataavailable = ({ data }) => parts.push(data);
  const stopped = new Promise((done) => {
    started.onstop = done;
  });
  started.start();
  recorder = started;
  stopped.then(async () => {
    for (const track of stream.getTracks()) track.stop();
    recorder = null;
    const bytes = await new Blob(parts).arrayBuffer();
    const sound = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(bytes);
    take(toWav(sound.getChannelData(0)));
  });
}

/**
 * A button that begins a recording, and ends it.
 * @param {(file: File) => void} take what becomes of it
 */
export function recordButton(take) {
  const problem = h("span", { class: "problem" });
  const button = h("button", { type: "button", id: "record" });
  const show = () => {
    button.replaceChildren(recorder ? "Stop and listen" : "Record");
    button.setAttribute("aria-pressed", String(recorder !== null));
  };
  button.addEventListener("click", async () => {
    problem.replaceChildren();
    try {
      if (recorder) recorder.stop();
      else await record(take);
    } catch (error) {
      problem.replaceChildren(alertBox(`There is no microphone here: ${messageOf(error)}`));
    }
    show();
  });
  show();
  return h("span", {}, button, problem);
}
