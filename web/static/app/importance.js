// How much each hyperparameter explains of the metric: bars with their spread.
import { html, useRef } from "./html.js";
import { query } from "./api.js";
import { useGet } from "./data.js";
import { count, many } from "./format.js";
import { short } from "./heatmap.js";
import { isOver } from "./experiments.js";
import { Saves } from "./saves.js";
import { traced, useWidth } from "./svg.js";
import { Load } from "./ui.js";

const [LINE, MOST, NUMBERS] = [24, 15, 92];

/** What an R² means for who reads the bars. @param {number} r2 @param {string} name of the metric */
export function meaning(r2, name) {
  const about = `R² ${Math.max(0, r2).toFixed(2)} of trials that the model has not seen`;
  if (r2 < 0.2) return `These hyperparameters explain little of ${name} (${about}): take the order below for chance.`;
  if (r2 < 0.6) return `These hyperparameters explain a part of ${name} (${about}).`;
  return `These hyperparameters explain most of ${name} (${about}).`;
}

/** @param {{e: any, metric: string}} props `metric`: group.name; empty: that of the search */
export function Importance({ e, metric }) {
  const found = useGet(`undeterred/experiments/${e.id}/importance${query({ metric })}`);
  return html`<section class="card" aria-label="importance"><h2>What matters for ${e.searcherMetric}</h2>
    <${Load} of=${found} height=${160}>${(/** @type {any} */ answer) => (answer.reason ? html`<p class="muted">Not known yet: ${answer.reason}.</p>` : html`<${Bars} e=${e} answer=${answer} reload=${found.reload} />`)}</${Load}></section>`;
}

/** @param {{e: any, answer: any, reload: () => void}} props */
function Bars({ e, answer, reload }) {
  const picture = useRef(/** @type {any} */ (null));
  const [box, width] = useWidth();
  const rows = answer.hyperparameters.slice(0, MOST);
  const left = Math.min(Math.round(width * 0.4), 12 + 6.5 * Math.max(...rows.map((/** @type {any} */ row) => row.name.length)));
  const most = Math.max(0.01, ...rows.map((/** @type {any} */ row) => row.importance + row.spread));
  const x = (/** @type {number} */ share) => left + (Math.max(0, share) / most) * (width - left - NUMBERS);
  const percent = (/** @type {number} */ share) => `${(100 * Math.max(0, share)).toFixed(1)} %`;
  const height = rows.length * LINE + 6;
  return html`<div class="stack tight"><p>${meaning(answer.r2, e.searcherMetric)} ${answer.r2 >= 0.2 && rows.length > 0 && html`<strong>${rows[0].name}</strong> accounts for ${percent(rows[0].importance)} of how trials differ, alone or together with others.`}</p>
    <div ref=${box}><svg class="picture" ref=${picture} viewBox="0 0 ${width} ${height}" role="img" aria-label="importance: ${rows.map((/** @type {any} */ row) => `${row.name} ${percent(row.importance)}`).join(", ")}">
      <line class="axis" x1=${left} x2=${left} y1="2" y2=${height - 2} />
      ${rows.map((/** @type {any} */ row, /** @type {number} */ i) => {
        const y = i * LINE + LINE / 2 + 3;
        return html`<g key=${row.name}><title>${row.name}: ${percent(row.importance)}, give or take ${percent(row.spread)}</title><text x=${left - 8} y=${y + 4} text-anchor="end">${short(row.name, Math.floor((left - 10) / 6.2))}</text>
          <rect x=${left} y=${y - 7} width=${Math.max(1, x(row.importance) - left)} height="14" rx="2" fill="var(--run)" opacity="0.8" />
          <line x1=${x(row.importance - row.spread)} x2=${x(row.importance + row.spread)} y1=${y} y2=${y} stroke="var(--ink)" stroke-width="1.5" />
          <text class="num" x=${width - 46} y=${y + 4} text-anchor="end">${percent(row.importance)}</text><text class="num" x=${width - 2} y=${y + 4} text-anchor="end">± ${(100 * row.spread).toFixed(1)}</text></g>`;
      })}</svg></div>
    <div class="row spread"><p class="muted">From ${many(answer.trials, "trial")}${answer.trials < answer.total ? ` of ${count(answer.total)}` : ""} by random forests; one that was stopped early counts with what it had reached.${answer.hyperparameters.length > MOST ? ` The first ${MOST} of ${answer.hyperparameters.length} hyperparameters.` : ""}</p>
      <div class="row tight">${!isOver(e) && html`<button class="quiet small" onClick=${reload}>Compute again</button>`}<${Saves} name="importance" draw=${() => ({ ...traced(picture.current), title: `What matters for ${e.searcherMetric}`, about: `From ${many(answer.trials, "trial")}; R² ${Math.max(0, answer.r2).toFixed(2)} of trials that the model has not seen`, keys: [{ label: "how much a hyperparameter explains", fill: "var(--run)" }, { label: "give or take", shape: "line", stroke: "var(--ink)" }] })}
          table=${() => [["hyperparameter", "importance", "spread"], ["name", "importance", "spread"].map((key) => answer.hyperparameters.map((/** @type {any} */ row) => row[key]))]} /></div></div></div>`;
}
