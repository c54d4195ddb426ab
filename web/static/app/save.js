// What a picture can be saved as.

/** @param {Blob} blob @param {string} name */
function offer(blob, name) {
  const address = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** @param {string} text @param {string} name @param {string} type */
export const saveText = (text, name, type) => offer(new Blob([text], { type }), name);

/** @param {HTMLCanvasElement | null} canvas @param {string} name */
export const saveCanvas = (canvas, name) => canvas?.toBlob((blob) => blob && offer(blob, name), "image/png");

/** A cell that no spreadsheet takes for a formula. @param {any} value */
function cell(value) {
  const text = value === null || value === undefined ? "" : String(value);
  const plain = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
}

/** Columns as lines. @param {string[]} titles @param {any[][]} columns */
export function csvOf(titles, columns) {
  const lines = [titles.map(cell).join(",")];
  for (let i = 0; i < (columns[0]?.length ?? 0); i++) lines.push(columns.map((column) => cell(column[i])).join(","));
  return `${lines.join("\n")}\n`;
}

/** @param {string} text */
const escaped = (text) => text.replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c] ?? c);

/** Curves as a drawing of their own. @param {string} title @param {string} xLabel @param {{label: string, colour: string, width?: number}[]} series @param {any[]} data @param {boolean} log */
export function svgOf(title, xLabel, series, data, log) {
  const [w, h, left, bottom] = [800, 450, 60, 40];
  const ys = data.slice(1).flat().filter((v) => Number.isFinite(v) && (!log || v > 0)).map((v) => (log ? Math.log10(v) : v));
  const [x0, x1] = [data[0][0] ?? 0, data[0][data[0].length - 1] ?? 1];
  const [y0, y1] = [ys.reduce((a, b) => Math.min(a, b), Infinity), ys.reduce((a, b) => Math.max(a, b), -Infinity)];
  const px = (/** @type {number} */ x) => left + ((x - x0) / (x1 - x0 || 1)) * (w - left - 20);
  const py = (/** @type {number} */ y) => h - bottom - (((log ? Math.log10(y) : y) - y0) / (y1 - y0 || 1)) * (h - bottom - 40);
  const lines = series.map((each, i) => {
    const points = data[0].map((/** @type {number} */ x, /** @type {number} */ k) => [x, data[i + 1][k]])
      .filter((/** @type {any[]} */ [, y]) => Number.isFinite(y) && (!log || y > 0))
      .map((/** @type {number[]} */ [x, y]) => `${px(x).toFixed(1)},${py(y).toFixed(1)}`).join(" ");
    return `<polyline points="${points}" fill="none" stroke="${each.colour}" stroke-width="${each.width || 0.7}"><title>${escaped(each.label)}</title></polyline>`;
  });
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => {
    const y = y0 + share * (y1 - y0);
    const x = x0 + share * (x1 - x0);
    const shown = log ? 10 ** y : y;
    return `<text x="${left - 6}" y="${py(shown) + 4}" text-anchor="end">${Number(shown.toPrecision(3))}</text><text x="${px(x)}" y="${h - bottom + 16}" text-anchor="middle">${Number(x.toPrecision(4))}</text>`;
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${w} ${h}" font-family="sans-serif" font-size="11"><rect width="${w}" height="${h}" fill="#fff"/><text x="${left}" y="22" font-size="14">${escaped(title)}</text>${ticks.join("")}<text x="${w / 2}" y="${h - 6}" text-anchor="middle">${escaped(xLabel)}</text>${lines.join("")}</svg>\n`;
}
