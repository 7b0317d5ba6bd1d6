/* A recording as a saved model reads it: the samples of a WAV file, and how loud each mel band is, frame by
   frame, as regard/audio/mel.py computes it. */

import { fromBase64 } from "./local_run.js";

const RATE = 16_000; // samples a second
const WINDOW = 400; // samples of a frame: 25 ms
const HOP = 160; // samples from one frame to the next: 10 ms
const FRAMES = 8; // a spectrogram has a multiple of this many
const RANGE = 8; // orders of magnitude of power below the loudest
const SILENCE = -2; // log10 power: recordings below it are not amplified
const LINEAR = 1000; // Hz, up to which mels are linear
const [PER_HZ, PER_LOG] = [3 / 200, 27 / Math.log(6.4)]; // mels
const [PCM, FLOAT, EXTENSIBLE] = [1, 3, 0xfffe]; // formats of samples
const MOST = 2 ** 22; // samples of a recording of another rate

/** @typedef {{ re: Float64Array, im: Float64Array }} Complex */

/** @type {(count: number) => Complex} */
const zeros = (count) => ({ re: new Float64Array(count), im: new Float64Array(count) });

/** X[k] = Σ x[n] exp(−2πi k n / N), in place, for N = 2, 4, 8 …. Cooley & Tukey 1965.
 * @param {Complex} x */
function transformPower({ re, im }) {
  const N = re.length;
  for (let i = 1, j = 0; i < N; i++) { // bits reversed
    let bit = N >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) [re[i], re[j], im[i], im[j]] = [re[j], re[i], im[j], im[i]];
  }
  for (let size = 2; size <= N; size *= 2) {
    const half = size / 2;
    for (let k = 0; k < half; k++) {
      const [c, s] = [Math.cos((2 * Math.PI * k) / size), -Math.sin((2 * Math.PI * k) / size)];
      for (let a = k; a < N; a += size) {
        const b = a + half;
        const [x, y] = [re[b] * c - im[b] * s, re[b] * s + im[b] * c];
        [re[b], im[b]] = [re[a] - x, im[a] - y];
        [re[a], im[a]] = [re[a] + x, im[a] + y];
      }
    }
  }
}

/** The same for any N, as a convolution with a chirp. Bluestein 1970.
 * @type {(x: Complex) => Complex} */
function transform(x) {
  const N = x.re.length;
  const size = 2 ** Math.ceil(Math.log2(2 * N));
  const [a, b, result] = [zeros(size), zeros(size), zeros(N)];
  const chirp = zeros(N);
  for (let n = 0; n < N; n++) {
    const angle = (Math.PI * ((n * n) % (2 * N))) / N;
    [chirp.re[n], chirp.im[n]] = [Math.cos(angle), -Math.sin(angle)];
    a.re[n] = x.re[n] * chirp.re[n] - x.im[n] * chirp.im[n];
    a.im[n] = x.re[n] * chirp.im[n] + x.im[n] * chirp.re[n];
    for (const m of n ? [n, size - n] : [0]) [b.re[m], b.im[m]] = [chirp.re[n], -chirp.im[n]];
  }
  transformPower(a);
  transformPower(b);
  for (let k = 0; k < size; k++) { // the conjugate of the product, so that the way back is the same
    const [p, q] = [a.re[k] * b.re[k] - a.im[k] * b.im[k], a.re[k] * b.im[k] + a.im[k] * b.re[k]];
    [a.re[k], a.im[k]] = [p, -q];
  }
  transformPower(a);
  for (let k = 0; k < N; k++) {
    const [p, q] = [a.re[k] / size, -a.im[k] / size];
    result.re[k] = p * chirp.re[k] - q * chirp.im[k];
    result.im[k] = p * chirp.im[k] + q * chirp.re[k];
  }
  return result;
}

/** Samples at RATE: the part of the spectrum that both rates have is unchanged.
 * @type {(samples: Float64Array, rate: number) => Float64Array} */
export function resample(samples, rate) {
  const N = samples.length;
  const count = Math.max(1, Math.round((N * RATE) / rate));
  if (count === N) return samples;
  if (Math.max(N, count) > MOST) throw new Error("this recording is too long for a page; cut it");
  const { re, im } = transform({ re: samples, im: new Float64Array(N) });
  const back = zeros(count);
  for (let k = 0; k < Math.min(N >> 1, count >> 1) + 1; k++) {
    const share = k === 0 || 2 * k === count ? 1 : 2; // the others also stand for their mirror images
    [back.re[k], back.im[k]] = [(share * re[k]) / N, (-share * im[k]) / N];
  }
  return transform(back).re;
}

/** @type {(hz: number) => number} */
const toMel = (hz) => (hz < LINEAR ? hz * PER_HZ : LINEAR * PER_HZ + Math.log(hz / LINEAR) * PER_LOG);

/** @type {(mel: number) => number} */
const toHz = (mel) =>
  (mel < LINEAR * PER_HZ ? mel / PER_HZ : LINEAR * Math.exp((mel - LINEAR * PER_HZ) / PER_LOG));

/** Triangles over the frequencies of a frame, each of area 1, at equal distances in mels.
 * @type {(mels: number) => Float64Array[]} */
function melFilters(mels) {
  const edges = Array.from({ length: mels + 2 }, (_, i) => toHz((i / (mels + 1)) * toMel(RATE / 2)));
  return Array.from({ length: mels }, (_, m) => {
    const [left, centre, right] = edges.slice(m, m + 3);
    return Float64Array.from({ length: WINDOW / 2 + 1 }, (__, i) => {
      const hz = (i * RATE) / WINDOW;
      const low = Math.min((hz - left) / (centre - left), (right - hz) / (right - centre));
      return (Math.max(0, low) * 2) / (right - left);
    });
  });
}

/** The power of each frequency in the frame around a sample, under a Hann window.
 * @type {(samples: Float64Array, centre: number, waves: Float64Array[]) => Float64Array} */
function framePower(samples, centre, [cos, sin, hann]) {
  const frame = hann.map((w, i) => w * (samples[centre - WINDOW / 2 + i] ?? 0));
  return Float64Array.from({ length: WINDOW / 2 + 1 }, (_, k) => {
    let [re, im] = [0, 0];
    for (let i = 0; i < WINDOW; i++) {
      const at = (k * i) % WINDOW;
      re += frame[i] * cos[at];
      im += frame[i] * sin[at];
    }
    return re * re + im * im;
  });
}

/** A log-mel spectrogram in bytes (1, mels, frames), low bands at the bottom; 255 is the loudest.
 * @type {(samples: Float64Array, mels: number) => { shape: number[], data: Uint8Array }} */
export function spectrogram(samples, mels) {
  const T = Math.ceil(samples.length / (HOP * FRAMES)) * FRAMES;
  const waves = [Math.cos, Math.sin, (/** @type {number} */ x) => 0.5 - 0.5 * Math.cos(x)].map((f) =>
    Float64Array.from({ length: WINDOW }, (_, i) => f((2 * Math.PI * i) / WINDOW)));
  const filters = melFilters(mels);
  const logs = new Float64Array(mels * T);
  let loudest = SILENCE;
  for (let t = 0; t < T; t++) {
    const power = framePower(samples, t * HOP, waves);
    filters.forEach((filter, m) => {
      const sum = filter.reduce((total, w, k) => total + (w && w * power[k]), 0);
      const log = Math.log10(Math.max(1e-10, sum));
      logs[(mels - 1 - m) * T + t] = log;
      loudest = Math.max(loudest, log);
    });
  }
  const data = Uint8Array.from(logs, (x) => Math.round(1 + 254 * Math.max(0, 1 + (x - loudest) / RANGE)));
  return { shape: [1, mels, T], data };
}

/** As many frames as a model reads: the loudest ones that follow each other.
 * @type {(sound: { shape: number[], data: Uint8Array }, most: number) => Tensor} */
function cutLoudest({ shape: [, mels, T], data }, most) {
  if (T <= most) return { shape: [1, mels, T], data };
  const sums = Array.from({ length: T }, (_, t) => {
    let sum = 0;
    for (let m = 0; m < mels; m++) sum += data[m * T + t];
    return sum;
  });
  let sum = sums.slice(0, most).reduce((a, b) => a + b, 0);
  let [best, first] = [sum, 0];
  for (let t = 1; t + most <= T; t++) {
    sum += sums[t + most - 1] - sums[t - 1];
    if (sum > best) [best, first] = [sum, t];
  }
  const rows = Array.from({ length: mels }, (_, m) => data.subarray(m * T + first, m * T + first + most));
  return { shape: [1, mels, most], data: Uint8Array.from(rows.flatMap((row) => [...row])) };
}

/** The format and the samples of a WAV file, as its chunks say.
 * @param {DataView} view */
function findSamples(view) {
  let format = null;
  for (let at = 12; at + 8 <= view.byteLength;) {
    const [name, length] = [view.getUint32(at), view.getUint32(at + 4, true)];
    const start = at + 8;
    if (name === 0x666d7420) { // "fmt "
      const kind = view.getUint16(start, true);
      const wide = kind === EXTENSIBLE && length >= 26;
      format = {
        kind: wide ? view.getUint16(start + 24, true) : kind, channels: view.getUint16(start + 2, true),
        rate: view.getUint32(start + 4, true), bits: view.getUint16(start + 14, true),
      };
    } else if (name === 0x64617461 && format) { // "data"
      return { ...format, start, length: Math.min(length, view.byteLength - start) };
    }
    at = start + length + (length % 2);
  }
  throw new Error("this is no complete WAV file");
}

/** How to read a sample, by format and bits.
 * @type {Record<string, (view: DataView, at: number) => number>} */
const SAMPLES = {
  [`${PCM} 8`]: (view, at) => view.getUint8(at) / 128 - 1,
  [`${PCM} 16`]: (view, at) => view.getInt16(at, true) / 2 ** 15,
  [`${PCM} 24`]: (view, at) => (view.getUint16(at, true) + 65536 * view.getInt8(at + 2)) / 2 ** 23,
  [`${PCM} 32`]: (view, at) => view.getInt32(at, true) / 2 ** 31,
  [`${FLOAT} 32`]: (view, at) => view.getFloat32(at, true),
  [`${FLOAT} 64`]: (view, at) => view.getFloat64(at, true),
};

/** The samples of a WAV file at RATE, from -1 to 1, the mean of its channels.
 * @param {Uint8Array<ArrayBuffer>} bytes */
export function readWav(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (bytes.length < 12 || view.getUint32(0) !== 0x52494646) {
    throw new Error("this file hears WAV files; convert the recording to one");
  }
  const { kind, channels, rate, bits, start, length } = findSamples(view);
  const read = SAMPLES[`${kind} ${bits}`];
  if (!read || !channels || !rate) throw new Error(`${bits} bits in format ${kind} are not read`);
  const size = bits / 8;
  const samples = new Float64Array(Math.floor(length / (size * channels)));
  if (!samples.length) throw new Error("this recording has no samples");
  let peak = 1;
  for (let i = 0; i < samples.length; i++) {
    for (let c = 0; c < channels; c++) samples[i] += read(view, start + (i * channels + c) * size) / channels;
    if (!Number.isFinite(samples[i])) throw new Error("some samples of this recording are not finite");
    peak = Math.max(peak, Math.abs(samples[i]));
  }
  return resample(samples.map((x) => x / peak), rate);
}

/**
 * The spectrogram of a WAV file in base64, of at most the frames that the model reads.
 * @type {(recording: string, shape: number[]) => Tensor}
 */
export const readRecording = (recording, [, mels, frames]) =>
  cutLoudest(spectrogram(readWav(fromBase64(recording)), mels), frames);

/**
 * How many patches of a width in frames a spectrogram has, and how many tokens.
 * @type {(task: SavedTask, pixels: Tensor) => Record<string, number>}
 */
export function countPatches({ frames = 1, counts = {} }, { shape }) {
  const columns = shape[2] / frames;
  return { columns, text: columns + counts.text - counts.columns };
}
