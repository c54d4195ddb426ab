// A trial: its curves, its runs and their causes, its checkpoints and log.
import { html } from "../html.js";
import { ahead, post, put } from "../api.js";
import { useGet, useTick } from "../data.js";
import { exact, hparam, lasted, metric, stateOf } from "../format.js";
import { Confirm, Empty, Head, Load, State, Table, Tabs, When } from "../ui.js";
import { Charts, metricNames } from "../metrics.js";
import { lazy } from "../lazy.js";
import { windowPath } from "../logwindow.js";
import { mayChange } from "../session.js";

const CheckpointTable = lazy("CheckpointTable", () => import("../checkpoints.js"));
const SystemCharts = lazy("SystemCharts", () => import("../system.js"));
const FormButton = lazy("FormButton", () => import("../form.js"));
const Steer = lazy("Steer", () => import("../steer.js"));
const LogView = lazy("LogView", () => import("../logview.js"));

/** What a trial's page reads first. @param {{id: string, tab?: string, experiment?: string}} params */
export function early({ id, tab = "overview", experiment }) {
  ahead(`trials/${id}`);
  if (experiment) ahead(`experiments/${experiment}`);
  if (tab === "logs") {
    const now = new URLSearchParams(location.search);
    ahead(windowPath(`trials/${id}`, {}, now.get("search") ?? "", now.get("level") ?? ""));
  }
}

/** `profiler`: as Determined names the tab. @param {{id: string, tab?: string}} props */
export function Trial({ id, tab: named = "overview" }) {
  const tab = named === "profiler" ? "system" : named;
  const one = useGet(`trials/${id}`, [`trial:${id}`]);
  const experimentId = one.data?.trial?.experimentId;
  const parent = useGet(experimentId ? `experiments/${experimentId}` : null, experimentId ? [`experiment:${experimentId}`] : []);
  return html`<${Load} of=${one} height=${300} page>${(/** @type {any} */ { trial: t }) => html`<${Load} of=${parent}>${(/** @type {any} */ { experiment: e }) => html`<div>
    <${Head} title="Trial ${t.id}" crumbs=${[[e.projectName, `/det/projects/${e.projectId}`], [`${e.id} ${e.name}`, `/det/experiments/${e.id}`]]} below=${html`<${Line} t=${t} e=${e} />`}>
      ${!t.endTime && mayChange(e) && html`<${Confirm} label="Kill" title="Kill trial ${t.id}?" confirm="Kill" run=${async () => { await post(`trials/${id}/kill`); one.reload(); }}><p>It ends at once, without a last checkpoint; the search goes on without it.</p></${Confirm}><${Steer} t=${t} reload=${one.reload} />`}${mayChange(e) && html`<${Retention} id=${id} />`}</${Head}>
    <${Tabs} base="/det/trials/${id}" now=${tab} tabs=${[["overview", "Overview"], ["hyperparameters", "Hyperparameters"], ["checkpoints", "Checkpoints", t.checkpointCount], ["workloads", "Workloads"], ["system", "System"], ["logs", "Logs"]]} />
    ${tab === "hyperparameters" ? html`<${Hyperparameters} t=${t} />` : tab === "checkpoints" ? html`<${Checkpoints} id=${id} e=${e} />` : tab === "workloads" ? html`<${Workloads} id=${id} />`
      : tab === "system" ? html`<${SystemCharts} t=${t} />` : tab === "logs" ? html`<${LogView} of="trials/${id}" taskIds=${t.taskIds} />` : html`<${Overview} t=${t} e=${e} />`}</div>`}</${Load}>`}</${Load}>`;
}

/** @param {{t: any, e: any}} props */
function Line({ t, e }) {
  useTick(1000);
  return html`<div class="row"><${State} state=${t.state} /><span class="muted">${metric(t.totalBatchesProcessed)} steps, ${lasted(t.startTime, t.endTime)}, started <${When} at=${t.startTime} />, ${t.restarts} restarts</span>
    ${t.searcherMetricValue !== null && html`<span>${e.searcherMetric} <strong>${metric(t.searcherMetricValue)}</strong></span>`}${t.id === e.bestTrialId && html`<span class="tag">best of the experiment</span>`}${t.runnerState && !t.endTime && html`<span class="tag">${t.runnerState.toLowerCase()}</span>`}</div>`;
}

/** @param {{id: string}} props */
const Retention = ({ id }) => html`<${FormButton} label="Log retention" title="How long the log of trial ${id} is kept" whole fields=${[{ key: "days", label: "Days after its end; -1: without a limit", type: "number", min: -1, max: 32_767, value: 30, required: true }]}
  run=${(/** @type {any} */ { days }) => put(`trials/${id}/retain_logs`, { numDays: days })} />`;

/** @param {{t: any, e: any}} props */
function Overview({ t, e }) {
  const why = useGet(`undeterred/trials/${t.id}/why`, [`trial:${t.id}`]);
  const decided = useGet(`undeterred/trials/${t.id}/decisions`, [`trial:${t.id}`]);
  return html`<div class="stack"><${Charts} e=${e} names=${metricNames([t])} trialIds=${[t.id]} />
    <div class="cards"><section class="card"><h2>Why it stands so</h2><${Load} of=${why}>${(/** @type {any} */ { sentences }) => html`<ul class="why">${sentences.map((/** @type {string} */ text) => html`<li key=${text}>${text}</li>`)}</ul>`}</${Load}></section>
      <section class="card"><h2>What the search decided about it</h2><${Load} of=${decided}>${(/** @type {any} */ { sentences }) => (sentences.length ? html`<ul class="why">${sentences.map((/** @type {string} */ text) => html`<li key=${text}>${text}</li>`)}</ul>` : html`<p class="muted">Nothing yet.</p>`)}</${Load}></section></div>
    <${Load} of=${why}>${(/** @type {any} */ { facts }) => html`<section class="stack tight"><h2>Runs</h2><${Runs} runs=${facts.runs ?? []} /></section>`}</${Load}></div>`;
}

/** Each run, when it was and how it ended; the bars share one scale of time. @param {{runs: any[]}} props */
function Runs({ runs }) {
  if (!runs.length) return html`<p class="muted">It has not run yet.</p>`;
  const start = Date.parse(runs[0].startedAt);
  const end = Math.max(...runs.map((run) => (run.endedAt ? Date.parse(run.endedAt) : Date.now())));
  const share = (/** @type {number} */ time) => (100 * (time - start)) / Math.max(1, end - start);
  return html`<${Table} label="runs" rows=${[...runs].reverse()} id=${(/** @type {any} */ r) => r.runId} columns=${[
    { key: "run", title: "Run", num: true, cell: (/** @type {any} */ r) => r.runId },
    { key: "on", title: "On", cell: (/** @type {any} */ r) => r.agents.join(", ") },
    { key: "from", title: "From", cell: (/** @type {any} */ r) => html`<time datetime=${r.startedAt}>${exact(r.startedAt)}</time>` },
    { key: "for", title: "For", num: true, cell: (/** @type {any} */ r) => lasted(r.startedAt, r.endedAt) },
    { key: "bar", title: "When", cell: (/** @type {any} */ r) => html`<svg width="180" height="12" aria-hidden="true"><rect width="180" height="12" fill="var(--sunken)" /><rect x=${1.8 * share(Date.parse(r.startedAt))} width=${Math.max(2, 1.8 * (share(r.endedAt ? Date.parse(r.endedAt) : Date.now()) - share(Date.parse(r.startedAt))))} height="12" fill=${r.kind === "failed" || r.kind === "fatal" ? "var(--bad)" : r.endedAt ? "var(--ok)" : "var(--run)"} /></svg>` },
    { key: "how", title: "How it ended", wrap: true, cell: (/** @type {any} */ r) => (r.endedAt ? `${r.message}${r.cause ? ` (${r.cause})` : ""}${r.code === null || r.code === undefined ? "" : `, exit code ${r.code}`}` : html`<${State} state=${r.state} />`) },
    { key: "matches", title: "Log policies", wrap: true, cell: (/** @type {any} */ r) => (r.matches ?? []).join("; ") },
  ]} />`;
}

/** @param {{t: any}} props */
function Hyperparameters({ t }) {
  const rows = Object.entries(t.hparams ?? {}).sort(([a], [b]) => a.localeCompare(b));
  return html`<${Table} label="hyperparameters" rows=${rows} id=${(/** @type {any} */ [name]) => name} columns=${[
    { key: "name", title: "Hyperparameter", cell: (/** @type {any} */ [name]) => name }, { key: "value", title: "Value", num: true, cell: (/** @type {any} */ [, value]) => html`<span title=${JSON.stringify(value)}>${hparam(value)}</span>` }]}
    empty=${html`<${Empty} title="This trial has no hyperparameters"></${Empty}>`} />`;
}

/** @param {{id: string, e: any}} props */
function Checkpoints({ id, e }) {
  const list = useGet(`trials/${id}/checkpoints?limit=500`, [`trial:${id}`]);
  return html`<${Load} of=${list}>${(/** @type {any} */ { checkpoints }) => html`<${CheckpointTable} rows=${checkpoints} metricName=${e.searcherMetric} reload=${list.reload} canChange=${mayChange(e)} />`}</${Load}>`;
}

/** @param {{id: string}} props */
function Workloads({ id }) {
  const list = useGet(`trials/${id}/workloads?limit=200&orderBy=ORDER_BY_DESC`, [`trial:${id}`]);
  return html`<${Load} of=${list}>${(/** @type {any} */ { workloads }) => html`<${Table} label="workloads" rows=${workloads.map((/** @type {any} */ each, /** @type {number} */ i) => ({ i, kind: Object.keys(each)[0], ...(/** @type {any} */ (Object.values(each)[0])) }))} id=${(/** @type {any} */ w) => w.i} columns=${[
    { key: "kind", title: "Kind", cell: (/** @type {any} */ w) => w.kind }, { key: "steps", title: "Steps", num: true, cell: (/** @type {any} */ w) => w.totalBatches },
    { key: "when", title: "When", cell: (/** @type {any} */ w) => html`<${When} at=${w.endTime} />` },
    { key: "what", title: "What", wrap: true, cell: (/** @type {any} */ w) => (w.uuid ? html`<code>${w.uuid}</code> ${stateOf(w.state).toLowerCase()}` : Object.entries(w.metrics?.avgMetrics ?? {}).slice(0, 12).map(([name, value]) => `${name} ${metric(value)}`).join(", ")) },
  ]} empty=${html`<${Empty} title="Nothing was reported yet"></${Empty}>`} />`}</${Load}>`;
}
