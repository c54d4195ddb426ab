// Slots over time: each trial a line, its runs as bars, with waits between them.
import { html, useRef, useState } from "./html.js";
import { useGet, useTick } from "./data.js";
import { clock, duration, exact, many } from "./format.js";
import { go } from "./router.js";
import { Saves } from "./saves.js";
import { traced } from "./svg.js";
import { Empty, Load } from "./ui.js";

const [W, LINE, LEFT, TOP] = [900, 16, 64, 26];
const MOST_LINES = 200;
/** By what the end of a run means: a colour, and a word. @type {Record<string, [string, string]>} */
const ENDS = {
  "": ["var(--run)", "runs"], clean: ["var(--off)", "left as asked"], finished: ["var(--ok)", "finished"],
  failed: ["var(--bad)", "failed"], fatal: ["var(--bad)", "failed for good"], system: ["var(--wait)", "lost with its host"],
};

/** @param {{e: any}} props */
export function Timeline({ e }) {
  const times = useGet(`undeterred/experiments/${e.id}/allocations?most=2000`, [`experiment:${e.id}`]);
  const picture = useRef(/** @type {any} */ (null));
  const [said, setSaid] = useState("");
  useTick(e.endTime ? 3_600_000 : 2000);
  return html`<${Load} of=${times}>${(/** @type {any} */ { trials, allocations }) => {
    if (!allocations.length) return html`<${Empty} title="No trial has held a slot yet"><p>Why not: the overview says what it waits for.</p></${Empty}>`;
    const shown = trials.slice(-MOST_LINES);
    const line = new Map(shown.map((/** @type {any} */ trial, /** @type {number} */ i) => [trial.trialId, i]));
    const runs = allocations.filter((/** @type {any} */ run) => line.has(run.trialId));
    const at = (/** @type {string | null} */ time) => (time ? Date.parse(time) : Date.now());
    const start = Math.min(...shown.map((/** @type {any} */ trial) => at(trial.startedAt)));
    const end = Math.max(start + 1000, ...runs.map((/** @type {any} */ run) => at(run.endedAt)));
    const x = (/** @type {number} */ time) => LEFT + ((time - start) / (end - start)) * (W - LEFT - 8);
    const height = TOP + shown.length * LINE + 6;
    const held = runs.reduce((/** @type {number} */ sum, /** @type {any} */ run) => sum + (run.slots * (at(run.endedAt) - at(run.startedAt))) / 1000, 0);
    const words = Object.entries(ENDS).filter(([kind]) => kind !== "fatal").map(([, each]) => each);
    return html`<section class="card" aria-label="slots over time"><div class="row spread"><h2>Slots over time</h2><div class="row tight"><span class="muted">${duration(held)} on slots in ${runs.length} runs</span><${Saves} name="slots over time" draw=${() => ({ ...traced(picture.current), title: `Slots over time of experiment ${e.id}`, about: `${exact(start)} to ${exact(end)}; ${duration(held)} on slots in ${many(runs.length, "run")}`, keys: [...words.map(([fill, label]) => ({ label, fill })), { label: "waits", shape: "line", stroke: "var(--line-strong)", dash: "2 3" }] })}
        table=${() => [["trial", "run", "from", "to", "slots", "agents", "end", "message"], [runs.map((/** @type {any} */ run) => run.trialId), runs.map((/** @type {any} */ run) => run.runId), runs.map((/** @type {any} */ run) => run.startedAt), runs.map((/** @type {any} */ run) => run.endedAt ?? ""), runs.map((/** @type {any} */ run) => run.slots), runs.map((/** @type {any} */ run) => run.agents.join(" ")), runs.map((/** @type {any} */ run) => (ENDS[run.endedAt ? run.kind : ""] ?? ENDS.clean)[1]), runs.map((/** @type {any} */ run) => run.message)]]} /></div></div>
      <svg class="picture" ref=${picture} viewBox="0 0 ${W} ${height}" role="img" aria-label="${runs.length} runs of ${shown.length} trials from ${exact(start)} to ${exact(end)}">
        ${[0, 0.25, 0.5, 0.75, 1].map((share) => html`<g key=${share}><line class="grid" x1=${x(start + share * (end - start))} x2=${x(start + share * (end - start))} y1=${TOP - 4} y2=${height} /><text x=${x(start + share * (end - start))} y="14" text-anchor=${share === 1 ? "end" : share ? "middle" : "start"}>${clock(start + share * (end - start))}</text></g>`)}
        ${shown.map((/** @type {any} */ trial, /** @type {number} */ i) => html`<g key=${trial.trialId}><text x=${LEFT - 8} y=${TOP + i * LINE + 11} text-anchor="end">${trial.trialId}</text>
          <line x1=${x(at(trial.startedAt))} x2=${Math.max(x(at(trial.startedAt)), x(Math.min(end, at(trial.endedAt))))} y1=${TOP + i * LINE + 7} y2=${TOP + i * LINE + 7} stroke="var(--line-strong)" stroke-dasharray="2 3" /></g>`)}
        ${runs.map((/** @type {any} */ run) => {
          const [fill, word] = ENDS[run.endedAt ? run.kind : ""] ?? ENDS.clean;
          const told = `trial ${run.trialId}, run ${run.runId} on ${run.agents.join(", ")}: ${clock(run.startedAt)} to ${run.endedAt ? clock(run.endedAt) : "now"}, ${word}${run.message ? `: ${run.message}` : ""}`;
          return html`<rect key="${run.trialId}.${run.runId}" x=${x(at(run.startedAt))} y=${TOP + line.get(run.trialId) * LINE + 2} width=${Math.max(2, x(at(run.endedAt)) - x(at(run.startedAt)))} height=${LINE - 5} rx="2" fill=${fill}
            style=${{ cursor: "pointer" }} onPointerEnter=${() => setSaid(told)} onClick=${() => go(`/det/trials/${run.trialId}`)}><title>${told}</title></rect>`;
        })}</svg>
      <p class="plot-tip">${said || "dashed: it waits for slots, for the search, or for the end of a back-off"}</p>
      <p class="row muted">${words.map(([fill, word]) => html`<span class="row tight" key=${word}><svg width="12" height="12" aria-hidden="true"><rect width="12" height="12" rx="2" fill=${fill} /></svg>${word}</span>`)}</p>
      ${trials.length > MOST_LINES && html`<p class="muted">The newest ${MOST_LINES} of ${trials.length} trials.</p>`}</section>`;
  }}</${Load}>`;
}
