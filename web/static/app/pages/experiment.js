// An experiment: how it goes, why, and what to do about it.
import { html, useState } from "../html.js";
import { ahead, post } from "../api.js";
import { useGet, useTick } from "../data.js";
import { bytes, lasted, many, metric } from "../format.js";
import { go, placeOf } from "../router.js";
import { Confirm, Do, Head, Load, Progress, State, Tabs, When } from "../ui.js";
import { COMMANDS, command, isOver, trialsPath } from "../experiments.js";
import { lazy } from "../lazy.js";
import { may, mayChange } from "../session.js";
import { MetricCharts } from "../metrics.js";

const Search = lazy("Search", () => import("../searchview.js"));
const [Trials, Checkpoints, Logs, Notes] = ["Trials", "Checkpoints", "Logs", "Notes"].map((name) => lazy(name, () => import("../experimenttabs.js")));
const Hyperparameters = lazy("Hyperparameters", () => import("../hyperparameters.js"));
const Timeline = lazy("Timeline", () => import("../timeline.js"));
const History = lazy("History", () => import("../history.js"));
const ExperimentBudget = lazy("ExperimentBudget", () => import("../budget.js"));
const Gates = lazy("Gates", () => import("../gates.js"));
const Code = lazy("Code", () => import("../code.js"));
const [Fork, Continue, Edit] = ["Fork", "Continue", "Edit"].map((name) => lazy(name, () => import("../experimentdialogs.js")));
const More = lazy("More", () => import("../experimentmore.js"));

/** What an experiment's page reads first. @param {{id: string, tab?: string}} params */
export function early({ id, tab = "overview" }) {
  ahead(`experiments/${id}`);
  if (tab === "trials") ahead(trialsPath(id, new URLSearchParams(location.search)));
}

/** What users of Determined have in their bookmarks: `visualization/heat-map` and its siblings. */
const tabOf = (/** @type {string} */ named) => (named !== "visualization" ? named : placeOf().endsWith("/learning-curve") ? "overview" : "hyperparameters");

/** @param {{id: string, tab?: string}} props */
export function Experiment({ id, tab: named = "overview" }) {
  const tab = tabOf(named);
  const one = useGet(`experiments/${id}`, [`experiment:${id}`]);
  return html`<${Load} of=${one} height=${300} page>${(/** @type {any} */ { experiment: e }) => html`<div>
    <${Head} title="${e.id} ${e.name}" crumbs=${[[e.workspaceName, `/det/workspaces/${e.workspaceId}`], [e.projectName, `/det/projects/${e.projectId}`]]} below=${html`<${Line} e=${e} />`}><${Actions} e=${e} reload=${one.reload} /></${Head}>
    <${Tabs} base="/det/experiments/${id}" now=${tab} tabs=${[["overview", "Overview"], ["trials", "Trials", e.numTrials], ["search", "Search"], ["hyperparameters", "Hyperparameters"], ["timeline", "Time"],
      ["checkpoints", "Checkpoints", e.checkpointCount], ["code", "Code"], ["logs", "Logs"], ["notes", "Notes"], ["history", "History"]]} />
    ${tab === "trials" ? html`<${Trials} e=${e} />` : tab === "search" ? html`<${Search} e=${e} />` : tab === "hyperparameters" ? html`<${Hyperparameters} e=${e} />` : tab === "timeline" ? html`<${Timeline} e=${e} />`
      : tab === "checkpoints" ? html`<${Checkpoints} e=${e} />` : tab === "code" ? html`<${Code} e=${e} />` : tab === "logs" ? html`<${Logs} e=${e} />`
      : tab === "history" ? html`<${History} e=${e} />` : tab === "notes" ? html`<${Notes} e=${e} reload=${one.reload} />` : html`<${Overview} e=${e} />`}</div>`}</${Load}>`;
}

/** @param {{e: any}} props */
function Line({ e }) {
  useTick(1000);
  return html`<div class="row"><${State} state=${e.state} />${!isOver(e) && html`<${Progress} share=${e.progress} />`}
    <span class="muted">${e.searcherType}, ${many(e.numTrials, "trial")}, ${lasted(e.startTime, e.endTime)}, started <${When} at=${e.startTime} /> by ${e.displayName || e.username} in ${e.resourcePool}</span>
    ${e.forkedFrom && html`<a href="/det/experiments/${e.forkedFrom}">forked from ${e.forkedFrom}</a>`}${e.archived && html`<span class="tag">archived</span>`}
    ${e.labels.map((/** @type {string} */ label) => html`<a class="tag" key=${label} href="/det/projects/${e.projectId}?label=${encodeURIComponent(label)}">${label}</a>`)}</div>`;
}

/** @param {{e: any, reload: () => void}} props */
function Actions({ e, reload }) {
  const [dialog, setDialog] = useState("");
  const [more, setMore] = useState(false);
  const run = (/** @type {string} */ name) => async () => {
    await command(e.id, name);
    reload();
  };
  const close = () => setDialog("");
  if (!mayChange(e)) return may("CREATE_EXPERIMENT", e.workspaceId) ? html`<button onClick=${() => setDialog("fork")}>Fork</button>${dialog === "fork" && html`<${Fork} e=${e} at=${0} onClose=${close} />`}` : html`<span class="muted">You may read this experiment.</span>`;
  return html`${COMMANDS.filter(([, , fits]) => fits(e)).map(([name, text]) =>
      name === "kill" || name === "cancel"
        ? html`<${Confirm} key=${name} kind="" label=${text} title="${text} experiment ${e.id}?" confirm=${text} run=${run(name)}><p>${name === "kill" ? "Its trials end at once, without a last checkpoint." : "Its trials end after their next checkpoint."} ${e.name} has ${many(e.numTrials, "trial")}; what they have stored stays.</p></${Confirm}>`
        : html`<${Do} key=${name} kind=${name === "activate" ? "first" : ""} run=${run(name)}>${text}</${Do}>`)}
    <button onClick=${() => setDialog("fork")}>Fork</button>
    ${isOver(e) ? html`<button onClick=${() => setDialog("continue")}>Continue</button>` : html`<button onClick=${() => setDialog("edit")}>Edit</button>`}
    <${Do} run=${async () => { const { tensorboard } = await post("tensorboards", { experimentIds: [e.id] }); go(`/det/interactive/${tensorboard.id}/tensorboard`); }}>TensorBoard</${Do}>
    <details class="menu" onToggle=${(/** @type {any} */ event) => setMore(event.target.open)}><summary class="button" aria-label="more">⋯</summary>${more && html`<${More} e=${e} reload=${reload} />`}</details>
    ${dialog === "fork" && html`<${Fork} e=${e} at=${0} onClose=${close} />`}${dialog === "continue" && html`<${Continue} e=${e} onClose=${close} />`}
    ${dialog === "edit" && html`<${Edit} e=${e} onClose=${close} />`}`;
}

// -- what it shows ---------------------------------------------------------------------------------------------------

/** @param {{e: any}} props */
function Overview({ e }) {
  const why = useGet(`undeterred/experiments/${e.id}/why`, [`experiment:${e.id}`]);
  return html`<div class="stack"><${MetricCharts} e=${e} />
    <div class="cards"><section class="card"><h2>Why it stands so</h2><${Load} of=${why}>${(/** @type {any} */ { sentences }) => html`<ul class="why">${sentences.map((/** @type {string} */ text) => html`<li key=${text}>${text}</li>`)}</ul>`}</${Load}></section>
      <section class="card"><h2>Facts</h2><dl class="facts"><dt>Best trial</dt><dd>${e.bestTrialId ? html`<a href="/det/trials/${e.bestTrialId}">trial ${e.bestTrialId}</a>, ${e.searcherMetric} ${metric(e.bestTrialSearcherMetric)}` : "none has validated yet"}</dd>
        <dt>Metric</dt><dd>${e.searcherMetric}, ${e.config.searcher.smaller_is_better ? "smaller" : "larger"} is better</dd><dt>Slots a trial</dt><dd>${e.config.resources.slots_per_trial}</dd><dt>Restarts</dt><dd>at most ${e.config.max_restarts} a trial</dd>
        <dt>Checkpoints</dt><dd>${e.checkpointCount}, ${bytes(e.checkpointSize)}</dd><dt>Entrypoint</dt><dd><code>${Array.isArray(e.config.entrypoint) ? e.config.entrypoint.join(" ") : e.config.entrypoint}</code></dd>
        ${e.description && html`<dt>Description</dt><dd>${e.description}</dd>`}${e.error && html`<dt>Error</dt><dd>${e.error}</dd>`}</dl></section><${ExperimentBudget} e=${e} /><${Gates} e=${e} /></div></div>`;
}
