/* Types that the JSDoc comments of the page's modules use: what the server sends, and what modules hand on. */

// Numbers

type Numbers = Float32Array | Uint8Array;

/** `shape`: (rows, columns), or (heads, rows, columns). */
interface Tensor {
  shape: number[];
  data: Numbers;
}

/** A part of a tensor: one head, "3:5" of its rows and columns, pooled to at most `most` numbers each way. */
interface TensorPart {
  head?: number | null;
  rows?: string;
  columns?: string;
  most?: number | null;
  as?: "uint8";
  trace?: string;
}

/** Which tokens label the rows and columns of a tensor: a key of `Manifest.tokens`. */
interface TensorInfo {
  shape: number[];
  rows: string | null;
  columns: string | null;
}

// How a number was computed: an operation and the names of its operands. @ names are weights.

type Term = [name: string, factor: number, firstRow: number];
type ActivationName = "relu" | "relu6" | "gelu" | "gelu_tanh" | "silu" | "sigmoid" | "tanh";
type FunctionName = ActivationName | "sin" | "cos";

interface SumOperations {
  "look up": { W: string; side?: string; by?: string };
  wave: { W: string; side: string; f: FunctionName[] };
  distance: { W: string; far?: number };
  add: { terms: Term[] };
  same: { x: string; row?: number; column?: number; share?: number };
  linear: {
    x: string | string[]; W: string; b?: string; share?: number; row?: number | number[]; f?: ActivationName;
  };
  turn: { x: string; cos: string; sin: string; share?: number };
  norm: {
    x: string; W: string; b?: string; eps?: number | null; f?: ActivationName; share?: number;
    rms?: boolean; channels?: boolean;
  };
  dot: { q: string; k: string; global?: [q: string, k: string] };
  additive: { q: string; k: string; w: string };
  scale: { x: string; by: number };
  softmax: { x: string; bias?: string; mask?: string };
  average: { w: string; v: string; global?: [q: string, v: string] };
  mean: { x: string };
  join: { x: string };
  activate: { x: string; f: ActivationName; times?: string; row?: number };
  gate: { x: string; by: string };
  largest: { x: string };
  multiply: { x: string; by: string };
  blend: { x: string; y: string; by: string };
  combine: { terms: [string, string | null][]; f?: ActivationName };
  concat: { x: string[]; row?: number[] };
  before: { x: string; first?: string; row?: number; back?: boolean };
  rows: { of: Sum[] };
  pixel: { x: string; mean: number[]; std: number[] };
  patch: { x: string; side: number; height?: number };
  regions: { x: string; f?: ActivationName };
  conv: {
    x: string; W: string; b?: string; f?: ActivationName; size: number; stride: number; groups: number;
  };
}

/** What the model says about a tensor; `formula` is in the notation of formula.js. */
interface TensorText {
  title: string;
  about: string;
  formula: string | null;
}

type SumOf<D extends keyof SumOperations> = { does: D } & SumOperations[D];
type Sum = { [D in keyof SumOperations]: SumOf<D> }[keyof SumOperations];

// The manifest: the answer to POST /api/trace

/** Without `diagonal` and `previous` where queries and keys are other tokens. */
interface HeadKinds {
  entropy: number;
  diagonal?: number;
  previous?: number;
  first: number;
}

/** The mean weight of each head on a pattern of cells, and that of an even spread. */
interface HeadPattern {
  weights: number[];
  chance: number;
  rows: number;
}

/** The patterns of an attention, and the one that each head is named after. */
interface HeadPatterns {
  patterns: Record<string, HeadPattern>;
  roles: (string | null)[];
}

/** What heads do on built-in texts and on random tokens that come twice; or why nothing is known. */
type HeadCorpus = { texts: number; repeats: number; attentions: Record<string, HeadPatterns> } | { reason: string };

type AttentionPart = "self" | "masked" | "encoder" | "decoder" | "cross";

interface AttentionInfo {
  name: string;
  layer: number;
  heads: number;
  rows: string;
  columns: string;
  masked: boolean;
  kinds: HeadKinds[];
  /** The entropy of an even spread. */
  bits: number;
  patterns: Record<string, HeadPattern>;
  /** The pattern that each head is named after. */
  roles: (string | null)[];
}

interface ModelInfo {
  name: string | null;
  class: string;
  task: string;
  talks: boolean;
  parameters: number;
  dtype: string;
  sees: boolean;
  hears: boolean;
}

interface Outputs {
  kind: "next" | "fill" | "classes";
  rows: string | null;
  goes_on?: boolean;
  /** A space, if tokens are words. */
  between?: string;
  lens?: boolean;
  /** Whether logits can be split into what each part adds. */
  parts?: boolean;
  /** Why not. */
  unsplit?: string | null;
}

interface GraphBox {
  name: string;
  title: string;
  note: string | null;
  shape: number[];
  group: string | null;
  from?: string | null;
}

interface GraphColumn {
  title: string;
  boxes: GraphBox[];
}

interface PositionInfo {
  part: string;
  kind: string;
  of: number;
}

/** The steps of a guided tour: each an address, and a sentence about what is seen there. */
interface Tour {
  title: string;
  steps: [address: string, words: string][];
}

/** What a training that is watched does; `rate` is what its learning rate is multiplied by. */
interface TrainingControl {
  paused: boolean;
  rate: number;
  ended: boolean;
}

interface Manifest {
  id: string;
  model: ModelInfo;
  input: string | null;
  /** Whether the input was given as token ids. */
  exact: boolean;
  answer: string | null;
  tokens: Record<string, string[]>;
  ids: Record<string, number[]>;
  /** The number of the word that each token belongs to, of the sides that have sub-words. */
  words?: Record<string, number[]>;
  /** Tokens of the input that don't fit the context. */
  unread: number;
  context: number | null;
  grid: [number, number] | null;
  difference: number | null;
  /** The trace without the changes of What if, if this one has some. */
  base?: string;
  tensors: Record<string, TensorInfo>;
  sums: Record<string, Sum>;
  texts: Record<string, TensorText>;
  attentions: Partial<Record<AttentionPart, AttentionInfo[]>>;
  /** The head that the page opens with. */
  opening: { part: AttentionPart; layer: number; head: number } | null;
  layers: number[] | null;
  depth: number;
  graph: GraphColumn[];
  outputs: Outputs | null;
  logged: boolean;
  step: number | null;
  steps: number[];
  /** Frames of its training, each with the loss that was last logged by then. */
  film?: [step: number, loss: number | null][];
  /** The step of the frame that a page shows which follows the training. */
  newest?: number | null;
  /** The training that started this page. */
  control?: TrainingControl;
  /** Whether the run is being trained. */
  training: boolean;
  /** All models of the page, and the number of this one; a saved page has one. */
  models?: string[];
  chosen?: number;
  maps: string[];
  positions: PositionInfo[];
  searches: boolean;
  /** Tours of a lecturer, by name. */
  tours?: Record<string, Tour>;
}

// Other answers of the server

interface Candidate {
  token: string;
  from: number;
  parent: number;
  p: number;
  score: number;
  kept: boolean;
  ended: boolean;
}

interface SearchTree {
  steps: Candidate[][];
  chosen: number[];
  score: number;
}

interface LensLayer {
  layer: number | "embedding";
  words: string[];
  p: number[];
  rank: number;
  its: number;
}

interface Lens {
  final: string;
  layers: LensLayer[];
}

/** What a part adds to a logit. */
interface Contribution {
  name: string;
  head: number | null;
  value: number;
}

interface Attribution {
  token: number;
  row: number;
  logit: number;
  total: number;
  parts: Contribution[];
  /** What heads add, by the token that it was read from. */
  words: Record<string, number[]>;
}

interface LogRow {
  step: number;
  loss?: number;
  valid_loss?: number;
  /** What was noticed, or asked for on the page. */
  notice?: string;
}

type Point = [number, number];

/** Vectors in the plane; the first `own` are those of this input. */
interface PointMap {
  rows: number[];
  words: string[];
  points: Point[];
  shares: [number, number];
  own: number;
  of: number;
}

interface Neighbour {
  row: number;
  word: string;
  point: Point;
  value: number;
}

interface Neighbours {
  distance: string;
  of: Neighbour[];
  found: Neighbour[];
}

interface WordChange {
  word: string;
  before: number;
  after: number;
  logit_before: number;
  logit_after: number;
}

/** One change of What if; `to` is a key's number, "even", or a list of weights; `weight` that of the key, if the
 * others share the rest. */
interface Change {
  kind: "silence" | "weights" | "hide" | "take";
  part?: string;
  head?: number;
  query?: number;
  to?: number | "even" | number[];
  weight?: number;
  token?: number;
  at?: number;
  input?: string;
  picture?: boolean | string;
}

interface ChangeResult {
  text: { before: string | null; after: string | null };
  kl: (number | null)[];
  mean: number | null;
  row: number;
  top: WordChange[];
  patchable: string[];
  /** What is wrong with each change. */
  problems?: (string | null)[];
}

interface HeadEffect {
  part: string;
  head: number;
  kl: number;
  log_probability: number;
}

interface Comparison {
  rows: number[];
  kl: number | null;
  top: WordChange[];
}

interface SavedTensor {
  shape: number[];
  type: string;
  data: string;
  row?: number;
}

// A file that is the model

/** An operation of a program, with the name and the rows of the value that it makes: those of a side's tokens,
 * so many, or "image". A value has `heads` of so `width`, and `dims` dimensions in a trace. */
interface ProgramStep {
  does: string;
  name: string;
  rows: string | number;
  dims: number;
  heads: number;
  width: number;
  x?: string | string[];
  y?: string;
  q?: string;
  k?: string;
  global?: [string, string];
  w?: string;
  v?: string;
  W?: string;
  b?: string;
  cos?: string;
  sin?: string;
  bias?: string;
  mask?: string;
  times?: string;
  first?: string;
  by?: string | number;
  f?: string | string[];
  side?: string;
  height?: number;
  share?: number;
  row?: number | number[];
  column?: number;
  far?: number;
  eps?: number | null;
  rms?: boolean;
  channels?: boolean;
  back?: boolean;
  causal?: boolean;
  window?: number;
  globals?: number;
  size?: number;
  stride?: number;
  groups?: number;
  mean?: number[];
  std?: number[];
  of?: object[];
  terms?: Term[] | [string, string | null][];
}

/** Base64 of float32; or of eight bits and a `scale` for each row. `like`: the same as another. */
interface SavedWeight {
  shape: number[];
  data: string;
  scale?: string;
  like?: string;
}

/** A weight of a saved model; of eight bits, also as integers with a scale for each row. */
type Weight = Tensor & { data: Float32Array; int8?: { integers: Int8Array; scales: Float32Array } };

interface SavedTokenizer {
  model: string;
  normalizer: string;
  split: string;
  /** Of words; or in turn what is split off. */
  patterns: string[];
  join: string;
  tokens: (string | null)[];
  words: Record<number, string>;
  merges: string[];
  scores: number[];
  /** A word that is a token is not merged; what is no token becomes its bytes; several unknown ones, one. */
  whole: boolean;
  bytes: boolean;
  fuse: boolean;
  specials: number[];
  /** Other tokens that are found in texts by their spelling. */
  added: number[];
  unknown: number | null;
}

/** What a chat template puts around questions and answers in turn, and whether it trims them. */
interface SavedTemplate {
  begin: string;
  answer: string;
  next: string;
  end: string;
  trims: [questions: boolean, answers: boolean];
}

interface SavedTask {
  reads: "write" | "fill" | "next" | "replaced" | "span" | "classify" | "tag" | "embed" | "translate" | "chat" | "restore" | "image";
  /** It writes a target to a source; it generates tokens. */
  writes: boolean;
  generates: boolean;
  context: number;
  most: number;
  ends: number[];
  begin?: number | null;
  end?: number | null;
  source_end?: number | null;
  first?: number[];
  blank?: number[];
  mask?: number;
  sentinels?: number[];
  separator?: number | null;
  /** Around each part of a text whose words are tagged, how many tokens fit, and what stands for nothing. */
  before?: number[];
  after?: number[];
  room?: number;
  unknown?: number;
  /** Between a question and its text, and whether there may be no answer. */
  separators?: number;
  unanswerable?: boolean;
  template?: SavedTemplate;
  /** Vectors have length 1. */
  normalize?: boolean;
  turns?: number;
  longest?: number | null;
  labels?: string[] | null;
  bounds?: [number, number];
  /** Rows of a side that has no ids: the regions of an image. */
  counts?: Record<string, number>;
  /** Of a recording: the width of a patch in frames, and the names of its tokens. */
  frames?: number;
  regions?: string[];
  image?: [channels: number, height: number, width: number];
}

interface SavedModel {
  program: (ProgramStep | ProgramStep[])[];
  /** How many first tokens have queries of their own, or the id before which all have. */
  globals: number | { before: number } | null;
  weights: Record<string, SavedWeight>;
  tokenizers: SavedTokenizer[];
  task: SavedTask;
  patchable: string[];
  pixels: SavedTensor | null;
  heads: HeadCorpus;
}

/** What a model reads: ids of its sides, where the second text begins, the pixels of an image. */
interface Reading {
  ids: Record<string, number[]>;
  counts?: Record<string, number>;
  second?: number;
  /** Where an answer may begin or end. */
  may?: boolean[];
  pixels?: Tensor;
  /** Tokens of the input that don't fit the context, and all of them. */
  unread?: number;
  all?: number[];
}

/** What a page of one file holds. */
interface SavedPage {
  manifest: Manifest;
  model?: SavedModel;
  words: Record<number, string>;
  log: LogRow[];
  state: State;
  trees: Record<number, SearchTree>;
  lenses: Record<number, Lens>;
  attributions: Record<string, Attribution>;
  space: {
    maps: Record<string, PointMap>;
    near: { tokens: Record<number, Record<string, Omit<Neighbours, "distance">>> };
  };
  tensors: Record<string, SavedTensor>;
}

// What modules hand on

/** What the address says. */
type State = Record<string, string | undefined>;
type StateChanges = Record<string, string | number | null | undefined>;
type Go = (changes: StateChanges, how?: { quiet?: boolean; replace?: boolean }) => void;

interface TableData {
  head: string[];
  rows: (string | number)[][];
}

/** What can be taken away from a view. */
interface Output {
  name: string;
  canvas?: HTMLCanvasElement;
  /** The canvas drawn anew, so many times as large. */
  enlarge?: (scale: number) => HTMLCanvasElement;
  svg?: SVGSVGElement | (() => SVGSVGElement);
  /** Of the scene, which becomes a drawing before it is left. */
  layer?: HTMLElement;
  csv?: () => TableData;
  tensor?: [name: string, head?: number];
  python?: ((input: string) => string[]) | null;
  class?: string;
  more?: Output[];
}

type Source = import("./source.js").Server | import("./source.js").Saved | import("./local.js").Local;

interface App {
  source: Source;
  manifest: Manifest;
  state: State;
  current: Output | null;
  go: Go;
  view?: View | null;
  /** A token of a side is pointed at; null: no longer. */
  point: (side: string, i: number | null) => void;
  /** Base64 of pictures that the user gave: to trace, to compare with, to take parts from. */
  dropped?: string | null;
  beside?: string | null;
  taken?: string | null;
  talked?: Turn[] | null;
}

/** What was asked and answered: what the model read, and the tokens that it wrote. */
interface Turn {
  input: string;
  output: string;
  pieces: { id: number; token: string; text: string }[];
  ids?: number[];
  source?: number[];
}

interface View {
  show: (root: HTMLElement, app: App) => Promise<Output | null | void> | void;
  /** Returns whether the key was used. */
  key?: (key: string, app: App) => boolean;
}

type Child = Node | string | number | null | undefined | Child[];
type Attributes = Record<string, any>;
type KeyHandlers = Record<string, (event: KeyboardEvent) => unknown>;
/** The row and column of a matrix. */
type Place = [row: number, column: number];
/** Why a cell has no number; `blank` is not 0 where there is a reason. */
type MaskReasons = ((row: number, column: number) => string | null) & { blank: Numbers };
