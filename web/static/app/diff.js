// Lines that differ between two texts: the longest common subsequence, of what is between equal ends.

const MOST_CELLS = 4_000_000;

/** @param {string} before @param {string} after @returns {[" " | "+" | "-", string][]} */
export function differences(before, after) {
  const a = before.split("\n");
  const b = after.split("\n");
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const keep = (/** @type {string} */ line) => /** @type {[" ", string]} */ ([" ", line]);
  return [...a.slice(0, start).map(keep), ...between(a.slice(start, a.length - end), b.slice(start, b.length - end)), ...a.slice(a.length - end).map(keep)];
}

/** @param {string[]} a @param {string[]} b @returns {[" " | "+" | "-", string][]} */
function between(a, b) {
  if (a.length * b.length > MOST_CELLS) return [...a.map((line) => /** @type {["-", string]} */ (["-", line])), ...b.map((line) => /** @type {["+", string]} */ (["+", line]))];
  const width = b.length + 1;
  const length = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      length[i * width + j] = a[i] === b[j] ? length[(i + 1) * width + j + 1] + 1 : Math.max(length[(i + 1) * width + j], length[i * width + j + 1]);
  /** @type {[" " | "+" | "-", string][]} */
  const lines = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      lines.push([" ", a[i]]);
      i++;
      j++;
    } else if (i < a.length && (j >= b.length || length[(i + 1) * width + j] >= length[i * width + j + 1])) lines.push(["-", a[i++]]);
    else lines.push(["+", b[j++]]);
  }
  return lines;
}
