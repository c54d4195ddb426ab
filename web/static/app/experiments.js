// Experiments in lists, and what can be done with them.
import { html } from "./html.js";
import { post, query, remove } from "./api.js";
import { lasted, metric, stateOf } from "./format.js";
import { Progress, State, Table, When } from "./ui.js";

const ENDED = ["COMPLETED", "CANCELED", "ERROR"];
/** @param {any} e */
export const isOver = (e) => ENDED.includes(stateOf(e.state));

/** @type {(import("./ui.js").Column)[]} */
export const COLUMNS = [
  { key: "id", title: "ID", num: true, sort: "id", cell: (e) => html`<a href="/det/experiments/${e.id}">${e.id}</a>` },
  { key: "name", title: "Name", sort: "name", cell: (e) => html`<a href="/det/experiments/${e.id}" title=${e.name}>${e.name}</a>${(e.labels ?? []).map((/** @type {string} */ label) => html` <span class="tag" key=${label}>${label}</span>`)}${e.archived ? html` <span class="tag">archived</span>` : ""}` },
  { key: "state", title: "State", sort: "state", cell: (e) => html`<${State} state=${e.state} />` },
  { key: "progress", title: "Progress", sort: "progress", cell: (e) => (isOver(e) ? html`<span class="muted">–</span>` : html`<${Progress} share=${e.progress} />`) },
  { key: "best", title: "Best", num: true, sort: "searcherMetricsVal", hint: "the best trial's value of the searcher's metric", cell: (e) => (e.bestTrialId ? html`<a href="/det/trials/${e.bestTrialId}" title="trial ${e.bestTrialId}, ${e.searcherMetric}">${metric(e.bestTrialSearcherMetric)}</a>` : "–") },
  { key: "trials", title: "Trials", num: true, sort: "numTrials", cell: (e) => e.numTrials },
  { key: "searcher", title: "Searcher", sort: "searcherType", cell: (e) => e.searcherType },
  { key: "user", title: "User", sort: "user", cell: (e) => e.displayName || e.username },
  { key: "pool", title: "Pool", sort: "resourcePool", cell: (e) => e.resourcePool },
  { key: "start", title: "Started", sort: "startTime", cell: (e) => html`<${When} at=${e.startTime} />` },
  { key: "duration", title: "Duration", num: true, sort: "duration", cell: (e) => lasted(e.startTime, e.endTime) },
];

/** @param {{rows: any[], label: string, columns?: string[], [other: string]: any}} props */
export const ExperimentTable = ({ rows, label, columns, ...others }) =>
  html`<${Table} rows=${rows} id=${(/** @type {any} */ e) => e.id} label=${label} columns=${COLUMNS.filter((c) => !columns || columns.includes(c.key))} ...${others} />`;

export const TRIALS_LIMIT = 100;
/** The list of trials that an address stands for. @param {number | string} id of the experiment @param {URLSearchParams} now */
export function trialsPath(id, now) {
  const sort = now.get("sort") ?? "SORT_BY_ID";
  return `experiments/${id}/trials${query({ limit: TRIALS_LIMIT, offset: Number(now.get("offset") ?? 0), sortBy: sort.replace("-", ""), orderBy: sort.startsWith("-") ? "ORDER_BY_DESC" : "ORDER_BY_ASC" })}`;
}

/** What can be done with experiments, and with which. @type {[string, string, (e: any) => boolean][]} */
export const COMMANDS = [
  ["activate", "Activate", (e) => stateOf(e.state) === "PAUSED"],
  ["pause", "Pause", (e) => ["ACTIVE", "RUNNING", "QUEUED", "STARTING", "PULLING"].includes(stateOf(e.state))],
  ["cancel", "Cancel", (e) => !isOver(e)],
  ["kill", "Kill", (e) => !isOver(e)],
  ["archive", "Archive", (e) => isOver(e) && !e.archived],
  ["unarchive", "Unarchive", (e) => e.archived],
];

/** @param {number} id @param {string} command */
export const command = (id, command) => (command === "delete" ? remove(`experiments/${id}`) : post(`experiments/${id}/${command}`));
