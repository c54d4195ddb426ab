// Files that the browser saves.

/** @param {Blob} blob @param {string} name */
export function offer(blob, name) {
  const address = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** @param {string} text @param {string} name @param {string} type */
export const saveText = (text, name, type) => offer(new Blob([text], { type }), name);

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
