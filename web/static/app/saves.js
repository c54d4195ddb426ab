// The buttons below or beside every picture: saved as PNG, SVG and CSV. What they need is loaded when one is clicked.
import { html } from "./html.js";
import { attempt } from "./ui.js";

/**
 * @param {{name: string, file?: string, draw: () => any, table: () => [string[], any[][]]}} props
 *   `file`: the name without its ending, if it is not that of the picture; `draw`: a drawing, or a promise of one; `table`: titles, and the columns below them
 */
export function Saves({ name, file = name, draw, table }) {
  const save = async (/** @type {string} */ kind) => {
    const as = `${file.replace(/[^\w.-]+/g, "-")}.${kind.toLowerCase()}`;
    const [svg, save] = await Promise.all([import("./svg.js"), import("./save.js")]);
    if (kind === "CSV") save.saveText(save.csvOf(...table()), as, "text/csv");
    else await (kind === "PNG" ? svg.savePng : svg.saveSvg)(await draw(), as);
  };
  return html`<div class="row tight nowrap">${["PNG", "SVG", "CSV"].map((kind) => html`<button class="quiet small" key=${kind} aria-label="save ${name} as ${kind}" onClick=${() => attempt(() => save(kind))}>${kind}</button>`)}</div>`;
}
