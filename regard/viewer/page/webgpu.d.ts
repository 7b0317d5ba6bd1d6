/* The part of WebGPU that the page uses, which TypeScript does not declare yet. */

declare const GPUBufferUsage: Record<"UNIFORM" | "STORAGE" | "COPY_SRC" | "COPY_DST" | "MAP_READ", number>;
declare const GPUMapMode: { READ: number };

type GPUErrorFilter = "validation" | "out-of-memory" | "internal";

interface GPULimits {
  maxStorageBufferBindingSize: number;
  maxBufferSize: number;
}

interface GPUBuffer {
  getMappedRange(): ArrayBuffer;
  mapAsync(mode: number): Promise<void>;
  unmap(): void;
  destroy(): void;
}

interface GPUPipeline {
  getBindGroupLayout(group: number): object;
}

interface GPUPass {
  setPipeline(pipeline: GPUPipeline): void;
  setBindGroup(group: number, bound: object): void;
  dispatchWorkgroups(x: number, y: number, z: number): void;
  end(): void;
}

interface GPUEncoder {
  beginComputePass(): GPUPass;
  copyBufferToBuffer(from: GPUBuffer, fromByte: number, to: GPUBuffer, toByte: number, size: number): void;
  finish(): object;
}

interface GPUDevice {
  limits: GPULimits;
  lost: Promise<unknown>;
  queue: { submit(commands: object[]): void };
  createShaderModule(about: { code: string }): object;
  createComputePipeline(about: { layout: "auto"; compute: { module: object } }): GPUPipeline;
  createBuffer(about: { usage: number; size: number; mappedAtCreation: boolean }): GPUBuffer;
  createBindGroup(about: {
    layout: object;
    entries: { binding: number; resource: { buffer: GPUBuffer } }[];
  }): object;
  createCommandEncoder(): GPUEncoder;
  pushErrorScope(kind: GPUErrorFilter): void;
  popErrorScope(): Promise<GPUError | null>;
  destroy(): void;
}

interface Navigator {
  gpu?: {
    requestAdapter(): Promise<{
      limits: GPULimits;
      requestDevice(about: { requiredLimits: GPULimits }): Promise<GPUDevice>;
    } | null>;
  };
}
