/* Large products of a saved model on the graphics processor (WebGPU), where a browser offers one.

   `linearRows` of local_ops.js is the readable form, and what computes if there is no processor, if it is
   lost or fails, and where a product is too small for the way there and back. Weights of eight bits stay so
   in its memory. */

import { dotProduct } from "./local_ops.js";

const THREADS = 64; // that share the sums of a weight's row
const ROWS = 8; // of inputs that a row of the weight is read for at once
const ACROSS = 32768; // rows of a weight in a line of the grid of work
const SIDE = 1024; // of the product whose times say what pays
const MEASURING = 5; // milliseconds of tries, of which the quickest counts

/** y[m, n] = scale[n] Σ x[m, k] W[n, k], four k at a time; W of eight bits has four in each number.
 * @param {boolean} int8 */
const shader = (int8) => `
struct Size { K: u32, N: u32, M: u32 }
@group(0) @binding(0) var<uniform> size: Size;
@group(0) @binding(1) var<storage, read> x: array<vec4f>;
@group(0) @binding(2) var<storage, read> W: array<${int8 ? "u32" : "vec4f"}>;
@group(0) @binding(3) var<storage, read> scale: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
var<workgroup> sums: array<array<f32, ${ROWS}>, ${THREADS}>;

fn weight(i: u32) -> vec4f {
  ${int8 ? "let w = vec4i(bitcast<i32>(W[i])); return vec4f((w << vec4u(24, 16, 8, 0)) >> vec4u(24));"
    : "return W[i];"}
}

@compute @workgroup_size(${THREADS})
fn main(@builtin(workgroup_id) at: vec3u, @builtin(local_invocation_index) thread: u32) {
  let n = at.x + at.y * ${ACROSS};
  let rows = min(${ROWS}u, size.M - at.z * ${ROWS});
  if (n >= size.N) { return; }
  var part = array<f32, ${ROWS}>();
  for (var k = thread; k < size.K; k += ${THREADS}) {
    let w = weight(n * size.K + k);
    let at0 = at.z * ${ROWS} * size.K + k;
    ${[...Array(ROWS).keys()].map((m) =>
    `if (rows > ${m}) { part[${m}] += dot(w, x[at0 + ${m} * size.K]); }`).join("\n    ")}
  }
  sums[thread] = part;
  workgroupBarrier();
  if (thread >= rows) { return; }
  var sum = 0f;
  for (var i = 0u; i < ${THREADS}; i++) { sum += sums[i][thread]; }
  y[(at.z * ${ROWS} + thread) * size.N + n] = sum * ${int8 ? "scale[n]" : "1"};
}`;

/** A processor for products; `least` is the number of multiplications from which it is quicker. */
export class Gpu {
  least = Infinity;
  products = 0;
  /** @type {WeakMap<Weight, { W: GPUBuffer, scale: GPUBuffer }>} */
  #weights = new WeakMap();

  /** @param {GPUDevice} device */
  constructor(device) {
    this.device = device;
    this.pipelines = [false, true].map((int8) => device.createComputePipeline({
      layout: "auto", compute: { module: device.createShaderModule({ code: shader(int8) }) },
    }));
    device.lost.then(() => this.stop());
  }

  /** No more products here. */
  stop() {
    this.least = Infinity;
    this.device.destroy();
  }

  /**
   * Whether a product pays here.
   * @param {Weight} weight
   * @param {number} rows of inputs
   */
  pays({ shape: [N, K] }, rows) {
    const { maxStorageBufferBindingSize: most } = this.device.limits;
    const bytes = 4 * Math.max(N * K, rows * K, rows * N);
    return rows * N * K >= this.least && K % 4 === 0 && bytes <= most;
  }

  /** @type {(usage: number, size: number, data?: ArrayBufferView) => GPUBuffer} */
  #buffer(usage, size, data) {
    const buffer = this.device.createBuffer({ usage, size, mappedAtCreation: data !== undefined });
    if (data) {
      new Uint8Array(buffer.getMappedRange())
        .set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
      buffer.unmap();
    }
    return buffer;
  }

  /** A weight in the processor's memory, copied there when it is first used.
   * @param {Weight} weight */
  #load(weight) {
    const { STORAGE } = GPUBufferUsage;
    const known = this.#weights.get(weight);
    if (known) return known;
    const data = weight.int8?.integers ?? weight.data;
    const scales = weight.int8?.scales ?? new Float32Array(1);
    const W = this.#buffer(STORAGE, data.byteLength, data);
    const loaded = { W, scale: this.#buffer(STORAGE, scales.byteLength, scales) };
    this.#weights.set(weight, loaded);
    return loaded;
  }

  /** Start x Wᵀ, with the inputs behind one another in `x`; the first buffer is that to read the result of.
   * @type {(weight: Weight, x: Float32Array, M: number) => GPUBuffer[]} */
  #start(weight, x, M) {
    const { device, pipelines } = this;
    const { UNIFORM, STORAGE, COPY_SRC, COPY_DST, MAP_READ } = GPUBufferUsage;
    const [N, K] = weight.shape;
    const { W, scale } = this.#load(weight);
    const size = this.#buffer(UNIFORM, 16, Uint32Array.of(K / 4, N, M));
    const inputs = this.#buffer(STORAGE, x.byteLength, x);
    const result = this.#buffer(STORAGE | COPY_SRC, 4 * M * N);
    const copy = this.#buffer(COPY_DST | MAP_READ, 4 * M * N);
    const pipeline = pipelines[weight.int8 ? 1 : 0];
    const used = weight.int8 ? [size, inputs, W, scale, result] : [size, inputs, W, null, result];
    const entries = used.flatMap((buffer, binding) => (buffer ? [{ binding, resource: { buffer } }] : []));
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries }));
    pass.dispatchWorkgroups(Math.min(N, ACROSS), Math.ceil(N / ACROSS), Math.ceil(M / ROWS));
    pass.end();
    encoder.copyBufferToBuffer(result, 0, copy, 0, 4 * M * N);
    device.queue.submit([encoder.finish()]);
    return [copy, size, inputs, result];
  }

  /**
   * x Wᵀ, a row for each input; null if it could not be computed here.
   * @type {(weight: Weight, inputs: Float32Array[]) => Promise<Float32Array[] | null>}
   */
  async product(weight, inputs) {
    const [N, K] = weight.shape;
    const x = new Float32Array(inputs.length * K);
    inputs.forEach((row, m) => x.set(row, m * K));
    const kinds = /** @type {GPUErrorFilter[]} */ (["validation", "out-of-memory", "internal"]);
    for (const kind of kinds) this.device.pushErrorScope(kind);
    try {
      const [copy, ...others] = this.#start(weight, x, inputs.length);
      const errors = Promise.all(kinds.map(() => this.device.popErrorScope()));
      await copy.mapAsync(GPUMapMode.READ);
      const wrong = (await errors).find(Boolean);
      if (wrong) throw new Error(wrong.message);
      const y = new Float32Array(copy.getMappedRange().slice(0));
      for (const buffer of [copy, ...others]) buffer.destroy();
      this.products += 1;
      return inputs.map((_, m) => y.subarray(m * N, (m + 1) * N));
    } catch (error) {
      console.info(`Products are computed without the graphics processor: ${error}`);
      this.stop();
      return null;
    }
  }

  /** Find out what pays: time a small product and a large one here, and the large one without. */
  async measure() {
    const make = (/** @type {number} */ N) => ({ shape: [N, SIDE], data: new Float32Array(N * SIDE) });
    const [small, large, input] = [make(1), make(SIDE), new Float32Array(SIDE)];
    if (!await this.product(small, [input])) return; // the first one translates the program
    const way = await quickest(() => this.product(small, [input]));
    const here = await quickest(() => this.product(large, [input]));
    const there = await quickest(async () => {
      for (let n = 0; n < SIDE; n++) dotProduct(input, 0, large.data, n * SIDE, SIDE);
    });
    const saved = (there - Math.max(0, here - way)) / SIDE ** 2; // by each multiplication
    this.least = saved > 0 ? way / saved : Infinity;
  }
}

/** Milliseconds.
 * @param {() => Promise<unknown>} work */
async function quickest(work) {
  let [best, spent] = [Infinity, 0];
  while (spent < MEASURING) {
    const begin = performance.now();
    await work();
    const took = performance.now() - begin;
    [best, spent] = [Math.min(best, took), spent + took];
  }
  return best;
}

/** The browser's graphics processor, once it is measured; null without one.
 * @returns {Promise<Gpu | null>} */
export async function openGpu() {
  try {
    const adapter = await navigator.gpu?.requestAdapter();
    if (!adapter) return null;
    const { maxStorageBufferBindingSize, maxBufferSize } = adapter.limits;
    const requiredLimits = { maxStorageBufferBindingSize, maxBufferSize };
    const gpu = new Gpu(await adapter.requestDevice({ requiredLimits }));
    await gpu.measure();
    return gpu;
  } catch (error) {
    console.info(`The graphics processor can't be used: ${error}`);
    return null;
  }
}
