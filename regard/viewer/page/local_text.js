/* Tokenizers of a saved model: texts to ids and back, as the tokenizers library does it. */

const LONGEST_WORD = 100; // characters; WordPiece makes <unk> of more

/** GPT-2's symbol of each byte: itself if it is printable, else a character from 256 on. */
const SYMBOLS = (() => {
  const isPrintable = (/** @type {number} */ n) => (n > 32 && n < 127) || (n > 160 && n !== 173);
  let next = 256;
  return Array.from({ length: 256 }, (_, n) => String.fromCharCode(isPrintable(n) ? n : next++));
})();
const BYTES = new Map(SYMBOLS.map((symbol, byte) => [symbol, byte]));

/** @param {string} text */
const toSymbols = (text) => Array.from(new TextEncoder().encode(text), (byte) => SYMBOLS[byte]).join("");

/** Each character by itself: the end of a word changes nothing.
 * @param {string} text */
const lowerCase = (text) => Array.from(text, (c) => c.toLowerCase()).join("");

/** What BERT does to a text: no control characters, accents or capitals, spaces around Chinese characters.
 * @param {string} text */
function normalizeBert(text) {
  const clean = text.replace(/(?![\t\n\r])[\p{C}\ufffd]/gu, "").replace(/\p{White_Space}/gu, " ");
  const spaced = clean.replace(new RegExp("[\\u4e00-\\u9fff\\u3400-\\u4dbf\\u{20000}-\\u{2a6df}"
    + "\\u{2a700}-\\u{2b73f}\\u{2b740}-\\u{2b81f}\\u{2b920}-\\u{2ceaf}\\uf900-\\ufaff"
    + "\\u{2f800}-\\u{2fa1f}]", "gu"), " $& ");
  return lowerCase(spaced.normalize("NFD").replace(/\p{Mn}/gu, ""));
}

/** The matches of a pattern, and what is between them.
 * @type {(text: string, pattern: RegExp) => string[]} */
function isolate(text, pattern) {
  const parts = [];
  let at = 0;
  for (const { index, 0: match } of text.matchAll(pattern)) {
    parts.push(text.slice(at, index), match);
    at = index + match.length;
  }
  return [...parts, text.slice(at)].filter(Boolean);
}

/** @type {Record<string, (text: string, patterns: RegExp[]) => string[]>} */
const SPLITS = {
  all: (text) => (text ? [text] : []),
  space: (text) => text.match(/\P{White_Space}+/gu) ?? [],
  signs: (text, [pattern]) => text.match(pattern) ?? [],
  bert: (text) => text.match(/[!-/:-@[-`{-~\p{P}]|[^\p{White_Space}!-/:-@[-`{-~\p{P}]+/gu) ?? [],
  bytes: (text, patterns) => patterns.reduce((parts, pattern) =>
    parts.flatMap((part) => isolate(part, pattern)), text ? [text] : []), // then their symbols
};

/** @type {Record<string, (text: string) => string>} */
const NORMALIZERS = {
  none: (text) => text, lower: lowerCase, bert: normalizeBert, nfc: (text) => text.normalize("NFC"),
  spaces: (text) => (text ? `▁${text.replaceAll(" ", "▁")}` : ""),
};

/** Pairs are merged in the order of the merges, the first of several equal ones first.
 * @type {(word: string, ranks: Map<string, number>) => string[]} */
function mergePairs(word, ranks) {
  const parts = Array.from(word);
  for (;;) {
    let [best, at] = [Infinity, -1];
    for (let i = 0; i + 1 < parts.length; i++) {
      const rank = ranks.get(`${parts[i]} ${parts[i + 1]}`) ?? Infinity;
      if (rank < best) [best, at] = [rank, i];
    }
    if (at < 0) return parts;
    parts.splice(at, 2, parts[at] + parts[at + 1]);
  }
}

/** The longest pieces from the left; null if there is none somewhere.
 * @type {(word: string, ids: Map<string, number>) => string[] | null} */
function longestPieces(word, ids) {
  const letters = Array.from(word);
  if (letters.length > LONGEST_WORD) return null;
  const pieces = [];
  for (let from = 0; from < letters.length;) {
    let to = letters.length;
    const piece = () => (from ? "##" : "") + letters.slice(from, to).join("");
    while (to > from && !ids.has(piece())) to--;
    if (to === from) return null;
    pieces.push(piece());
    from = to;
  }
  return pieces;
}

/** The pieces whose scores have the largest sum.
 * @type {(word: string, scores: Map<string, number>, longest: number) => string[]} */
function likeliestPieces(word, scores, longest) {
  const best = [{ sum: 0, from: -1 }];
  for (let from = 0; from < word.length; from++) {
    for (let to = from + 1; best[from] && to <= Math.min(word.length, from + longest); to++) {
      const score = scores.get(word.slice(from, to));
      if (score === undefined) continue;
      const sum = best[from].sum + score;
      if (!best[to] || sum > best[to].sum) best[to] = { sum, from };
    }
  }
  const pieces = [];
  for (let to = word.length; to > 0; to = best[to].from) pieces.unshift(word.slice(best[to].from, to));
  return pieces;
}

/** A text that is changed letter by letter, and where each unit of the result comes from.
 * @type {(text: string, change: (letter: string) => string) =>
 *   { changed: string, origins: [from: number, to: number][] }} */
function alignLetters(text, change) {
  /** @type {[number, number][]} */
  const origins = [];
  let [changed, at] = ["", 0];
  for (const letter of text) {
    const one = change(letter);
    changed += one;
    for (let i = 0; i < one.length; i++) origins.push([at, at + letter.length]);
    at += letter.length;
  }
  return { changed, origins };
}

/** For each byte of a text, the units of its character.
 * @param {string} text */
function byteUnits(text) {
  let at = 0;
  return Array.from(text).flatMap((letter) => {
    const place = [at, at += letter.length];
    return Array.from(new TextEncoder().encode(letter), () => place);
  });
}

const SPACE = /^[\p{White_Space}\x1c-\x1f]$/u;

/** @type {(text: string, from: number, to: number) => [from: number, to: number]} */
function trimPlace(text, from, to) {
  let [begin, end] = [from, to];
  while (begin < end && SPACE.test(text[end - 1])) end -= 1;
  while (begin < end && SPACE.test(text[begin])) begin += 1;
  return [begin, end];
}

/** @type {[string, string][]} */
const CLEANED = [
  [" .", "."], [" ?", "?"], [" !", "!"], [" ,", ","], [" ' ", "'"], [" n't", "n't"], [" 'm", "'m"],
  [" do not", " don't"], [" 's", "'s"], [" 've", "'ve"], [" 're", "'re"],
];

/** @type {(token: string, i: number) => string} */
function spell(token, i) {
  const text = i === 0 ? token : token.startsWith("##") ? token.slice(2) : ` ${token}`;
  return CLEANED.reduce((result, [from, to]) => result.replaceAll(from, to), text);
}

/** The name of a byte's token.
 * @param {number} byte */
const byteToken = (byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;

/** Tokens of bytes as characters, if they are some; each as an unknown one, if not.
 * @param {string} tokens */
function decodeBytes(tokens) {
  const bytes = Uint8Array.from(tokens.match(/[0-9A-F]{2}(?=>)/g) ?? [], (byte) => parseInt(byte, 16));
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return "\ufffd".repeat(bytes.length);
  }
}

const UTF8 = new TextDecoder("utf-8", { ignoreBOM: true });

/** @type {Record<string, (tokens: string[]) => string>} */
const JOINS = {
  fallback: (tokens) => tokens.join("").replaceAll("▁", " ").replace(/(?:<0x[0-9A-F]{2}>)+/g, decodeBytes)
    .replace(/^ /, ""),
  spaces: (tokens) => tokens.join(" "),
  plain: (tokens) => tokens.join(""),
  pieces: (tokens) => tokens.map(spell).join(""),
  bytes: (tokens) => UTF8.decode(Uint8Array.from(tokens.flatMap((token) =>
    (Array.from(token).every((c) => BYTES.has(c)) ? Array.from(token, (c) => BYTES.get(c) ?? 0)
      : Array.from(new TextEncoder().encode(token)))))),
};

/** A tokenizer that a file describes. */
export class Tokenizer {
  /** @param {SavedTokenizer} saved */
  constructor(saved) {
    this.saved = saved;
    const named = saved.tokens.map((token, id) => /** @type {[string, number]} */ ([token ?? "", id]));
    this.ids = new Map(named.filter(([token]) => token));
    this.specials = new Set(saved.specials);
    this.patterns = saved.patterns.map((pattern) => new RegExp(pattern, "gu"));
    this.ranks = new Map(saved.merges.map((pair, rank) => [pair, rank]));
    this.scores = new Map(saved.scores.map((score, id) => [named[id][0], score]));
    this.longest = saved.tokens.reduce((most, token) => Math.max(most, token?.length ?? 0), 0);
  }

  /** @param {string} text */
  encode(text) {
    return this.#encodeAround(text, this.saved.added, (part) => {
      const { normalizer, split } = this.saved;
      const words = SPLITS[split](NORMALIZERS[normalizer](part), this.patterns);
      return words.flatMap((word) => this.#encodeWord(word).map(({ id }) => id));
    });
  }

  /**
   * The ids of a text with their places in it, without the spaces at their ends; of tokenizers that change a
   * text letter by letter.
   * @param {string} text
   */
  encodePlaces(text) {
    const { normalizer, split } = this.saved;
    const { changed, origins } = alignLetters(text, NORMALIZERS[normalizer]);
    /** @type {[from: number, to: number][]} */
    const places = [];
    /** @type {number[]} */
    const ids = [];
    let at = 0;
    for (const word of SPLITS[split](changed, this.patterns)) {
      const begin = changed.indexOf(word, at);
      at = begin + word.length;
      const units = split === "bytes" ? byteUnits(word) : Array.from(word.split(""), (_, i) => [i, i + 1]);
      for (const { id, from, to } of this.#encodeWord(word)) {
        ids.push(id);
        const [first, last] = [origins[begin + units[from][0]], origins[begin + units[to - 1][1] - 1]];
        places.push(trimPlace(text, first[0], last[1]));
      }
    }
    return { ids, places };
  }

  /** A text in which a special token's spelling is the token.
   * @param {string} text */
  encodeSpelling(text) {
    return this.#encodeAround(text, this.saved.specials, (part) => this.encode(part));
  }

  /** A text in which the spellings of some tokens are these, the longest first.
   * @type {(text: string, tokens: number[], encode: (part: string) => number[]) => number[]} */
  #encodeAround(text, tokens, encode) {
    const spellings = tokens.map((id) => this.saved.tokens[id] ?? "").filter(Boolean)
      .sort((a, b) => b.length - a.length)
      .map((token) => token.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&"));
    const parts = spellings.length ? text.split(new RegExp(`(${spellings.join("|")})`)) : [text];
    return parts.flatMap((part, i) => (i % 2 ? [this.ids.get(part) ?? 0] : encode(part)));
  }

  /** The ids of a word, each with its place in the word, or in its bytes.
   * @type {(text: string) => { id: number, from: number, to: number }[]} */
  #encodeWord(text) {
    const { model, unknown, whole, bytes, fuse, split } = this.saved;
    const word = split === "bytes" ? toSymbols(text) : text;
    const known = this.ids.get(word);
    if (whole && known !== undefined) return [{ id: known, from: 0, to: word.length }];
    const pieces = model === "merges" ? mergePairs(word, this.ranks)
      : model === "pieces" ? longestPieces(word, this.ids) ?? [""]
        : model === "scores" ? likeliestPieces(word, this.scores, this.longest) : [word];
    /** @type {{ id: number, from: number, to: number }[]} */
    const result = [];
    let to = 0;
    pieces.forEach((piece, i) => {
      const from = to;
      to += model === "pieces" && i ? piece.length - 2 : piece.length || word.length;
      for (const token of bytes ? this.#spellBytes(piece) : [piece]) {
        const id = this.ids.get(token) ?? unknown;
        const before = result[result.length - 1];
        if (fuse && id === unknown && before?.id === unknown) before.to = to;
        else if (id !== null) result.push({ id, from, to });
      }
    });
    return result;
  }

  /** A piece that is no token as tokens of its bytes, if there are such.
   * @param {string} piece */
  #spellBytes(piece) {
    if (this.ids.has(piece)) return [piece];
    const tokens = Array.from(new TextEncoder().encode(piece), byteToken);
    return tokens.every((token) => this.ids.has(token)) ? tokens : [piece];
  }

  /** @param {number[]} ids */
  decode(ids) {
    const tokens = ids.filter((id) => !this.specials.has(id) && this.saved.tokens[id] !== null);
    return JOINS[this.saved.join](tokens.map((id) => /** @type {string} */ (this.saved.tokens[id])));
  }

  /** A readable piece for every id.
   * @param {number[]} ids */
  words(ids) {
    return ids.map((id) => this.saved.words[id] ?? this.saved.tokens[id] ?? `<${id}>`);
  }
}
