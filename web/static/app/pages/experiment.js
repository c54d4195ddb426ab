// An experiment: how it goes, why, and what to do about it.
import { html, useMemo, useState } from "../html.js";
import { patch, post, query, remove } from "../api.js";
import { useGet, useTick } from "../data.js";
import { bytes, hparam, lasted, many, metric, stateOf } from "../format.js";
import { go, setQuery, useLocation } from "../router.js";
import { Confirm, Do, Empty, Head, Load, Pages, Progress, State, Table, Tabs, When } from "../ui.js";
import { COMMANDS, command, isOver } from "../experiments.js";
import { lazy } from "../lazy.js";
import { may, mayChange } from "../session.js";
import { MetricCharts } from "../metrics.js";

const Search = lazy("Search", () => import("../searchview.js"));
const ParallelCoordinates = lazy("ParallelCoordinates", () => import("../hyperparameters.js"));
const Scatters = lazy("Scatters", () => import("../hyperparameters.js"));
const Timeline = lazy("Timeline", () => import("../timeline.js"));
const History = lazy("History", () => import("../history.js"));
const Code = lazy("Code", () => import("../code.js"));
const CheckpointTable = lazy("CheckpointTable", () => import("../checkpoints.js"));
const LogView = lazy("LogView", () => import("../logview.js"));
const [Fork, Continue, Edit, Describe, Move, Retention] = ["Fork", "Continue", "Edit", "Describe", "Move", "Retention"].map((name) => lazy(name, () => import("../experimentdialogs.js")));
const LIMIT = 100;

/** @param {{id: string, tab?: string}} props */
export function Experiment({ id, tab = "overview" }) {
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
    <details class="menu"><summary class="button" aria-label="more">⋯</summary><div><button onClick=${() => setDialog("describe")}>Name, labels, description</button><button onClick=${() => setDialog("move")}>Move to a project</button><button onClick=${() => setDialog("retention")}>Log retention</button>
      <${Confirm} label="Delete" title="Delete experiment ${e.id}?" confirm="Delete" run=${async () => { await remove(`experiments/${e.id}`); go(`/det/projects/${e.projectId}`); }} done="The experiment is being deleted"><p>${e.name} goes: ${many(e.numTrials, "trial")}, ${many(e.checkpointCount, "checkpoint")} (${bytes(e.checkpointSize)}), metrics and logs. This can't be undone.</p></${Confirm}></div></details>
    ${dialog === "fork" && html`<${Fork} e=${e} at=${0} onClose=${close} />`}${dialog === "continue" && html`<${Continue} e=${e} onClose=${close} />`}
    ${dialog === "edit" && html`<${Edit} e=${e} onClose=${close} />`}${dialog === "describe" && html`<${Describe} e=${e} onClose=${close} reload=${reload} />`}
    ${dialog === "move" && html`<${Move} e=${e} onClose=${close} reload=${reload} />`}${dialog === "retention" && html`<${Retention} e=${e} onClose=${close} />`}`;
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
        ${e.description && html`<dt>Description</dt><dd>${e.description}</dd>`}${e.error && html`<dt>Error</dt><dd>${e.error}</dd>`}</dl></section></div></div>`;
}

/** @param {{e: any}} props */
function Trials({ e }) {
  const { query: now } = useLocation();
  const sort = now.get("sort") ?? "SORT_BY_ID";
  const offset = Number(now.get("offset") ?? 0);
  const [chosen, setChosen] = useState(/** @type {Set<number>} */ (new Set()));
  const list = useGet(`experiments/${e.id}/trials${query({ limit: LIMIT, offset, sortBy: sort.replace("-", ""), orderBy: sort.startsWith("-") ? "ORDER_BY_DESC" : "ORDER_BY_ASC" })}`, [`experiment:${e.id}`]);
  const names = Object.keys(e.hyperparameters ?? {}).filter((name) => e.hyperparameters[name]?.type !== "const").slice(0, 8);
  return html`<${Load} of=${list}>${(/** @type {any} */ { trials, pagination }) => html`<div class="stack">
    ${chosen.size > 1 && html`<div class="row card"><strong>${many(chosen.size, "trial")} chosen</strong><a class="button" href="/det/compare?trials=${[...chosen].join(",")}">Compare</a><button class="quiet" onClick=${() => setChosen(new Set())}>Clear</button></div>`}
    <${Table} label="trials" rows=${trials} id=${(/** @type {any} */ t) => t.id} sort=${sort} onSort=${(/** @type {string} */ text) => setQuery({ sort: text, offset: "" })} chosen=${chosen} onChoose=${setChosen} columns=${[
      { key: "id", title: "Trial", num: true, sort: "SORT_BY_ID", cell: (/** @type {any} */ t) => html`<a href="/det/trials/${t.id}">${t.id}</a>${t.id === e.bestTrialId ? html` <span class="tag">best</span>` : ""}` },
      { key: "state", title: "State", sort: "SORT_BY_STATE", cell: (/** @type {any} */ t) => html`<${State} state=${t.state} />` },
      { key: "metric", title: e.searcherMetric, num: true, sort: "SORT_BY_BEST_VALIDATION_METRIC", hint: "best validation", cell: (/** @type {any} */ t) => metric(t.searcherMetricValue) },
      { key: "batches", title: "Steps", num: true, sort: "SORT_BY_BATCHES_PROCESSED", cell: (/** @type {any} */ t) => t.totalBatchesProcessed },
      { key: "rung", title: "Rung", num: true, cell: (/** @type {any} */ t) => (t.rung === null || t.rung === undefined ? "–" : t.bracket ? `${t.rung} (bracket ${t.bracket})` : t.rung) },
      ...names.map((name) => ({ key: `h.${name}`, title: name, num: true, cell: (/** @type {any} */ t) => hparam(t.hparams[name]) })),
      { key: "restarts", title: "Restarts", num: true, sort: "SORT_BY_RESTARTS", cell: (/** @type {any} */ t) => t.restarts },
      { key: "checkpoints", title: "Checkpoints", num: true, cell: (/** @type {any} */ t) => `${t.checkpointCount}, ${bytes(t.totalCheckpointSize)}` },
      { key: "duration", title: "Duration", num: true, cell: (/** @type {any} */ t) => lasted(t.startTime, t.endTime) },
      { key: "why", title: "Last word", wrap: true, cell: (/** @type {any} */ t) => t.message },
    ]} empty=${html`<${Empty} title="No trial yet"><p>The search makes its first trials when it starts.</p></${Empty}>`} />
    <${Pages} total=${pagination.total} offset=${offset} limit=${LIMIT} onOffset=${(/** @type {number} */ n) => setQuery({ offset: n ? String(n) : "" })} /></div>`}</${Load}>`;
}

/** @param {{e: any}} props */
function Hyperparameters({ e }) {
  const list = useGet(`experiments/${e.id}/trials?limit=1000`, [`experiment:${e.id}`]);
  return html`<${Load} of=${list}>${(/** @type {any} */ { trials }) => {
    const done = trials.filter((/** @type {any} */ t) => typeof t.searcherMetricValue === "number");
    if (done.length < 2) return html`<${Empty} title="Two trials with a validation are needed"><p>Then their hyperparameters are drawn against ${e.searcherMetric}.</p></${Empty}>`;
    return html`<div class="stack"><${ParallelCoordinates} e=${e} trials=${done} /><${Scatters} e=${e} trials=${done} /></div>`;
  }}</${Load}>`;
}

/** @param {{e: any}} props */
function Checkpoints({ e }) {
  const { query: now } = useLocation();
  const offset = Number(now.get("offset") ?? 0);
  const list = useGet(`experiments/${e.id}/checkpoints?limit=${LIMIT}&offset=${offset}`, [`experiment:${e.id}`]);
  return html`<${Load} of=${list}>${(/** @type {any} */ data) => html`<div class="stack"><${CheckpointTable} rows=${data.checkpoints} metricName=${e.searcherMetric} reload=${list.reload} canChange=${mayChange(e)} />
    <${Pages} total=${data.pagination.total} offset=${offset} limit=${LIMIT} onOffset=${(/** @type {number} */ n) => setQuery({ offset: n ? String(n) : "" })} /></div>`}</${Load}>`;
}

/** @param {{e: any}} props */
function Logs({ e }) {
  const { query: now } = useLocation();
  const list = useGet(`experiments/${e.id}/trials?limit=1000`, [`experiment:${e.id}`]);
  const trials = list.data?.trials ?? [];
  const wanted = Number(now.get("trial") ?? e.bestTrialId ?? trials[0]?.id);
  const trial = useMemo(() => trials.find((/** @type {any} */ t) => t.id === wanted), [trials, wanted]);
  return html`<${Load} of=${list}>${() => (!trial ? html`<${Empty} title="No trial yet"></${Empty}>` : html`<div class="stack"><label class="row tight"><span class="muted">trial</span>
    <select value=${wanted} onChange=${(/** @type {any} */ event) => setQuery({ trial: event.target.value })}>${trials.map((/** @type {any} */ t) => html`<option key=${t.id} value=${t.id} selected=${t.id === wanted}>${t.id} ${stateOf(t.state).toLowerCase()}${t.id === e.bestTrialId ? ", best" : ""}</option>`)}</select></label>
    <${LogView} key=${trial.id} of="trials/${trial.id}" taskIds=${trial.taskIds} /></div>`)}</${Load}>`;
}

/** @param {{e: any, reload: () => void}} props */
function Notes({ e, reload }) {
  const [notes, setNotes] = useState(e.notes);
  return html`<div class="stack"><label class="field">Notes<textarea rows="18" value=${notes} onInput=${(/** @type {any} */ event) => setNotes(event.target.value)}></textarea></label>
    <div class="row"><${Do} kind="first" disabled=${notes === e.notes || !mayChange(e)} run=${async () => { await patch(`experiments/${e.id}`, { notes }); reload(); }} done="Notes saved">Save</${Do}></div></div>`;
}
