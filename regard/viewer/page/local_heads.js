/* What each head of a saved model does on an input, as regard/viewer/heads.py measures it. */

const MOST_TOKENS = 2048; // each way
const LEAST_WEIGHT = 0.4; // of a head's attention that goes to a pattern, or it is not named after it
const LEAST_RATIO = 1.5; // times what an even spread would give
/** @type {Record<string, number>} what is more telling comes first */
const TELLING = {
  induction: 1.4, alignment: 1.2, duplicate: 1.1, previous: 1, near: 0.9, next: 0.9, positional: 0.8,
  itself: 0.5, first: 0.4, class: 0.4,
};

/** Whether a cell, of a query i and a key j, belongs to a pattern.
 * @typedef {(i: number, j: number) => boolean} Cells */
/** The weights of one attention: those of a head on a row of keys, and whether a key may be attended to.
 * @typedef {object} Weights
 * @property {number} heads
 * @property {number} queries
 * @property {number} keys
 * @property {(head: number, t: number) => Float32Array} row
 * @property {Cells} allowed */
/** The ids of the queries and of the keys; the same array if they are the same tokens.
 * @typedef {[number[], number[]]} SideIds */

/** The patterns that make sense between these queries and keys.
 * @type {(weights: Weights, ids: SideIds, grid: [number, number] | null) => Record<string, Cells>} */
function patternCells({ queries, keys }, [rows, columns], grid) {
  if (rows !== columns) {
    if (grid || Math.min(queries, keys) < 3) return {};
    return { alignment: (i, j) => Math.abs(j * (queries - 1) - i * (keys - 1)) < queries };
  }
  if (grid) {
    const [height, width] = grid;
    const before = queries - height * width;
    /** @type {Cells} */
    const near = (i, j) => {
      const [a, b] = [i - before, j - before];
      const down = Math.abs(Math.floor(a / width) - Math.floor(b / width));
      return a >= 0 && b >= 0 && Math.max(down, Math.abs((a % width) - (b % width))) === 1;
    };
    return { ...(before > 0 && { class: (i, j) => j === 0 && i > 0 }), itself: (i, j) => i === j, near };
  }
  /** @type {Record<string, Cells>} */
  const cells = {
    first: (i, j) => j === 0 && i > 0, itself: (i, j) => i === j,
    previous: (i, j) => i - j === 1, next: (i, j) => j - i === 1,
  };
  for (const k of [2, 3, 4].filter((one) => one < queries - 1)) {
    cells[`positional ${k}`] = (i, j) => i - j === k;
  }
  cells.induction = (i, j) => j > 0 && j <= i && rows[i] === rows[j - 1];
  cells.duplicate = (i, j) => j < i && rows[i] === rows[j];
  return cells;
}

/**
 * How much of each head's weight goes to the cells of each pattern.
 * @type {(weights: Weights, ids: SideIds, grid: [number, number] | null) => Record<string, HeadPattern>}
 */
export function findPatterns(weights, ids, grid) {
  /** @type {Record<string, HeadPattern>} */
  const patterns = {};
  const { heads, queries, keys, row, allowed } = weights;
  if (Math.max(queries, keys) > MOST_TOKENS) return patterns;
  for (const [name, cells] of Object.entries(patternCells(weights, ids, grid))) {
    const sums = Array(heads).fill(0);
    let [rows, chance] = [0, 0];
    for (let i = 0; i < queries; i++) {
      const open = Array.from({ length: keys }, (_, j) => j).filter((j) => allowed(i, j));
      const columns = open.filter((j) => cells(i, j));
      if (!columns.length) continue;
      rows++;
      chance += columns.length / open.length;
      sums.forEach((_, h) => {
        for (const j of columns) sums[h] += row(h, i)[j];
      });
    }
    if (rows < 2) continue;
    patterns[name] = { weights: sums.map((sum) => sum / rows), chance: chance / rows, rows };
  }
  return patterns;
}

/** The most telling pattern of a head, and how telling it is.
 * @type {(patterns: Record<string, HeadPattern>, head: number) => [string | null, number]} */
function bestPattern(patterns, head) {
  /** @type {[string | null, number]} */
  let best = [null, 0];
  for (const [name, { weights, chance }] of Object.entries(patterns)) {
    if (weights[head] < Math.max(LEAST_WEIGHT, LEAST_RATIO * chance)) continue;
    const telling = TELLING[name.split(" ")[0]] * (weights[head] - chance);
    if (telling > best[1]) best = [name, telling];
  }
  return best;
}

/** @type {(patterns: Record<string, HeadPattern>, heads: number) => (string | null)[]} */
export const nameHeads = (patterns, heads) =>
  Array.from({ length: heads }, (_, head) => bestPattern(patterns, head)[0]);

/** Entropy in bits, the weight on the first token, and where queries and keys are the same tokens, on the
 * token itself and the one before.
 * @type {(weights: Weights, same: boolean) => HeadKinds[]} */
export function headKinds({ heads, queries, keys, row }, same) {
  return Array.from({ length: heads }, (_, h) => {
    let [entropy, diagonal, previous, first] = [0, 0, 0, 0];
    for (let t = 0; t < queries; t++) {
      const weights = row(h, t);
      for (const p of weights) entropy -= p > 0 ? p * Math.log2(p) : 0;
      if (t < keys) diagonal += weights[t];
      if (t > 0 && t <= keys) previous += weights[t - 1];
      first += weights[0];
    }
    const kinds = { entropy: entropy / queries, first: first / queries };
    if (!same) return kinds;
    return { ...kinds, diagonal: diagonal / queries, previous: previous / Math.max(1, queries - 1) };
  });
}

/** The entropy of an even spread over the keys that each query may attend to, in bits.
 * @param {Weights} weights */
export function evenBits({ queries, keys, allowed }) {
  let bits = 0;
  for (let i = 0; i < queries; i++) {
    let open = 0;
    for (let j = 0; j < keys; j++) open += Number(allowed(i, j));
    bits += Math.log2(Math.max(1, open));
  }
  return bits / queries;
}

/**
 * The head that the page opens with: the most telling one, of the cross-attention where there is one.
 * @type {(parts: Manifest["attentions"]) => Manifest["opening"]}
 */
export function chooseOpening(parts) {
  /** @type {Manifest["opening"]} */
  let opening = null;
  let best = -Infinity;
  for (const [part, layers] of Object.entries(parts)) {
    if (parts.cross && part !== "cross") continue;
    for (const { kinds, bits, patterns, layer } of layers) {
      kinds.forEach(({ entropy }, head) => {
        const telling = bestPattern(patterns, head)[1] + 0.1 * (1 - entropy / Math.max(bits, 1e-3));
        if (telling <= best) return;
        best = telling;
        opening = { part: /** @type {AttentionPart} */ (part), layer, head };
      });
    }
  }
  return opening;
}
