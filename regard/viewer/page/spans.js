/* Where the tokens of a text stand in it. */

const MARKS = /^##|^[▁Ġ]|^\s+|\s+$/gu; // of the beginning of a word, or of a part of one

/**
 * For each token the place of its letters in the text; null for those that are not in it as they are, such as
 * special and unknown ones.
 * @type {(text: string, tokens: string[]) => ([from: number, to: number] | null)[]}
 */
export function locateTokens(text, tokens) {
  const low = text.toLowerCase();
  let at = 0;
  let certain = true; // what stands before this place is known
  return tokens.map((token) => {
    const word = token.replaceAll(MARKS, "").toLowerCase();
    const from = word && low.length === text.length ? low.indexOf(word, at) : -1;
    if (from < 0 || (certain && text.slice(at, from).trim())) {
      certain = false;
      return null;
    }
    [at, certain] = [from + word.length, true];
    return [from, at];
  });
}
