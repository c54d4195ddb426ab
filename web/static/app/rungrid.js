// Runs of a project in a grid, across its experiments, and what can be done with several.
import { html } from "./html.js";
import { post } from "./api.js";
import { isOver } from "./experiments.js";
import { lasted, many, metric } from "./format.js";
import { go } from "./router.js";
import { may, mayChange } from "./session.js";
import { Confirm, Do, State, When, toast } from "./ui.js";
import { Grid, RUNS } from "./pages/project.js";

/** @type {import("./pages/project.js").Kind} */
const KIND = {
  ...RUNS, kind: "runs", noun: "run", table: "TABLE_TYPE_RUN", batch: Batch,
  numbers: { metric: (r) => r.searcherMetricValue, steps: (r) => r.totalBatches, restarts: (r) => r.restarts },
  columns: [
    { key: "id", title: "Run", num: true, sort: "id", hint: "the trial's number", cell: (r) => html`<a href="/det/trials/${r.id}">${r.id}</a>` },
    { key: "experiment", title: "Experiment", sort: "experimentName", cell: (r) => html`<a href="/det/experiments/${r.experimentId}" title=${r.experimentName}>${r.experimentId} ${r.experimentName}</a>${r.archived ? html` <span class="tag">archived</span>` : ""}` },
    { key: "state", title: "State", sort: "state", cell: (r) => html`<${State} state=${r.state} />` },
    { key: "metric", title: "Best", num: true, sort: "searcherMetricsVal", hint: "best value of the searcher's metric", cell: (r) => html`<span title=${r.searcherMetric}>${metric(r.searcherMetricValue)}</span>` },
    { key: "steps", title: "Steps", num: true, cell: (r) => metric(r.totalBatches) },
    { key: "restarts", title: "Restarts", num: true, sort: "restarts", cell: (r) => r.restarts },
    { key: "checkpoints", title: "Checkpoints", num: true, sort: "checkpointCount", cell: (r) => r.checkpointCount },
    { key: "searcher", title: "Searcher", sort: "searcherType", cell: (r) => r.searcherType },
    { key: "user", title: "User", sort: "user", cell: (r) => r.displayName || r.username },
    { key: "pool", title: "Pool", sort: "resourcePool", cell: (r) => r.resourcePool },
    { key: "start", title: "Started", sort: "startTime", cell: (r) => html`<${When} at=${r.startTime} />` },
    { key: "duration", title: "Duration", num: true, sort: "duration", cell: (r) => lasted(r.startTime, r.endTime) },
  ],
};

/** @param {any} props */
export const RunsGrid = (props) => html`<${Grid} ...${props} kind=${KIND} />`;

/** @param {{project: string, chosen: any[], clear: () => void, reload: () => void}} props */
function Batch({ project, chosen, clear, reload }) {
  const own = chosen.filter(mayChange);
  const live = own.filter((r) => !isOver(r));
  const ids = (/** @type {any[]} */ which) => which.map((r) => r.id);
  const run = (/** @type {string} */ name, /** @type {any[]} */ which) => async () => {
    const { results } = await post(`runs/${name}`, { projectId: Number(project), runIds: ids(which) });
    const failed = results.filter((/** @type {any} */ each) => each.error);
    toast(failed.length ? `${failed.length} of ${which.length}: ${failed[0].error}` : `${name}: done for ${many(which.length, "run")}`, failed.length > 0);
    clear();
    reload();
  };
  return html`<div class="row card" role="group" aria-label="what to do with the chosen runs"><strong>${many(chosen.length, "run")} chosen</strong>
    ${chosen.length > 1 && html`<a class="button" href="/det/compare?trials=${ids(chosen).join(",")}">Compare</a>`}
    ${live.length > 0 && html`<${Confirm} label="Kill ${live.length}" title="Kill ${many(live.length, "run")}?" confirm="Kill" run=${run("kill", live)}><p>Runs ${ids(live).join(", ")} end at once, without a last checkpoint; their searches go on without them.</p></${Confirm}>`}
    ${own.length > 0 && html`<${Do} run=${run("archive", own)}>Archive ${own.length}</${Do}><${Do} run=${run("unarchive", own)}>Unarchive ${own.length}</${Do}>
      <${Confirm} label="Delete ${own.length}" title="Delete ${many(own.length, "run")}?" confirm="Delete" run=${run("delete", own)}><p>Runs ${ids(own).join(", ")} go with their experiments, with all metrics, logs and checkpoints: those of a search only together. This can't be undone.</p></${Confirm}>`}
    ${may("CREATE_NSC", chosen[0]?.workspaceId) && html`<${Do} run=${async () => { const { tensorboard } = await post("tensorboards", { trialIds: ids(chosen) }); go(`/det/interactive/${tensorboard.id}/tensorboard`); }}>TensorBoard</${Do}>`}
    <button class="quiet" onClick=${clear}>Clear</button></div>`;
}
