// Tabs of an experiment that its first picture does not need: trials, hyperparameters, checkpoints, logs, notes.
import { html, useMemo, useState } from "./html.js";
import { patch } from "./api.js";
import { useGet } from "./data.js";
import { bytes, hparam, lasted, many, metric, stateOf } from "./format.js";
import { setQuery, useLocation } from "./router.js";
import { Do, Empty, Load, Pages, State, Table } from "./ui.js";
import { TRIALS_LIMIT, isOver, trialsPath } from "./experiments.js";
import { lazy } from "./lazy.js";
import { mayChange } from "./session.js";

const CheckpointTable = lazy("CheckpointTable", () => import("./checkpoints.js"));
const AddTrial = lazy("AddTrial", () => import("./steer.js"));
const LogView = lazy("LogView", () => import("./logview.js"));
const LIMIT = 100;

/** @param {{e: any}} props */
export function Trials({ e }) {
  const { query: now } = useLocation();
  const sort = now.get("sort") ?? "SORT_BY_ID";
  const offset = Number(now.get("offset") ?? 0);
  const [chosen, setChosen] = useState(/** @type {Set<number>} */ (new Set()));
  const list = useGet(trialsPath(e.id, now), [`experiment:${e.id}`]);
  const names = Object.keys(e.hyperparameters ?? {}).filter((name) => e.hyperparameters[name]?.type !== "const").slice(0, 8);
  return html`<${Load} of=${list}>${(/** @type {any} */ { trials, pagination }) => html`<div class="stack">
    ${chosen.size > 1 && html`<div class="row card"><strong>${many(chosen.size, "trial")} chosen</strong><a class="button" href="/det/compare?trials=${[...chosen].join(",")}">Compare</a><button class="quiet" onClick=${() => setChosen(new Set())}>Clear</button></div>`}
    ${!isOver(e) && !e.unmanaged && mayChange(e) && html`<div class="row"><${AddTrial} e=${e} like=${trials[0]?.hparams} reload=${list.reload} /></div>`}
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
    <${Pages} total=${pagination.total} offset=${offset} limit=${TRIALS_LIMIT} onOffset=${(/** @type {number} */ n) => setQuery({ offset: n ? String(n) : "" })} /></div>`}</${Load}>`;
}

/** @param {{e: any}} props */
export function Checkpoints({ e }) {
  const { query: now } = useLocation();
  const offset = Number(now.get("offset") ?? 0);
  const list = useGet(`experiments/${e.id}/checkpoints?limit=${LIMIT}&offset=${offset}`, [`experiment:${e.id}`]);
  return html`<${Load} of=${list}>${(/** @type {any} */ data) => html`<div class="stack"><${CheckpointTable} rows=${data.checkpoints} metricName=${e.searcherMetric} reload=${list.reload} canChange=${mayChange(e)} />
    <${Pages} total=${data.pagination.total} offset=${offset} limit=${LIMIT} onOffset=${(/** @type {number} */ n) => setQuery({ offset: n ? String(n) : "" })} /></div>`}</${Load}>`;
}

/** @param {{e: any}} props */
export function Logs({ e }) {
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
export function Notes({ e, reload }) {
  const [notes, setNotes] = useState(e.notes);
  return html`<div class="stack"><label class="field">Notes<textarea rows="18" value=${notes} onInput=${(/** @type {any} */ event) => setNotes(event.target.value)}></textarea></label>
    <div class="row"><${Do} kind="first" disabled=${notes === e.notes || !mayChange(e)} run=${async () => { await patch(`experiments/${e.id}`, { notes }); reload(); }} done="Notes saved">Save</${Do}></div></div>`;
}
