// Experiments or trials side by side: configuration, hyperparameters, metrics.
import { html, useMemo } from "../html.js";
import { useGet } from "../data.js";
import { hparam, lasted, metric } from "../format.js";
import { useLocation } from "../router.js";
import { Empty, Head, Load, State, Table } from "../ui.js";
import { Charts, metricNames } from "../metrics.js";
import { Difference } from "../code.js";
import { lazy } from "../lazy.js";

const ByDecision = lazy("ByDecision", () => import("../bydecision.js"));

const MOST = 6;

export function Compare() {
  const { query } = useLocation();
  const list = (/** @type {string} */ name) => (query.get(name) ?? "").split(",").filter((each) => /^[1-9]\d{0,9}$/.test(each)).slice(0, MOST);
  const [experiments, trials] = [list("experiments"), list("trials")];
  if (experiments.length + trials.length < 2) return html`<${Empty} title="Choose two or more to compare"><p>Tick experiments in a project, or trials of an experiment.</p></${Empty}>`;
  return experiments.length ? html`<${Experiments} ids=${experiments} />` : html`<${Trials} ids=${trials} />`;
}

/** @param {{ids: string[]}} props */
function Experiments({ ids }) {
  const all = ids.map((id) => useGet(`experiments/${id}`, [`experiment:${id}`]));
  const failed = all.find((each) => each.error && !each.data);
  const rows = all.map((each) => each.data?.experiment).filter(Boolean);
  const flat = useMemo(() => rows.map((e) => flattened(e.config)), [rows.map((e) => `${e.id}${e.state}`).join()]);
  const keys = useMemo(() => [...new Set(flat.flatMap((each) => Object.keys(each)))].filter((key) => new Set(flat.map((each) => each[key])).size > 1).sort(), [flat]);
  return html`<${Load} of=${failed ?? { data: rows.length === ids.length ? rows : undefined, error: null }}>${() => html`<div class="stack"><${Head} title="Compare experiments ${ids.join(", ")}" />
    <${Side} label="experiments" things=${rows} title=${(/** @type {any} */ e) => html`<a href="/det/experiments/${e.id}">${e.id} ${e.name}</a>`} lines=${[
      ["state", (/** @type {any} */ e) => html`<${State} state=${e.state} />`], ["best", (/** @type {any} */ e) => `${e.searcherMetric} ${metric(e.bestTrialSearcherMetric)}`], ["trials", (/** @type {any} */ e) => e.numTrials], ["duration", (/** @type {any} */ e) => lasted(e.startTime, e.endTime)], ["searcher", (/** @type {any} */ e) => e.searcherType]]} />
    <h2>Learning curves</h2><div class="cards">${rows.map((e) => html`<section class="card" key=${e.id}><h3>${e.id} ${e.name}</h3><${OfExperiment} e=${e} /></section>`)}</div>
    <h2>What differs in their configurations</h2>${keys.length ? html`<${Side} label="configurations" things=${rows} title=${(/** @type {any} */ e) => `${e.id}`} lines=${keys.map((key) => [key, (/** @type {any} */ e) => flat[rows.indexOf(e)][key] ?? "–"])} />` : html`<p class="muted">Nothing.</p>`}
    ${rows.length === 2 && html`<h2>Their searches, decision by decision</h2><${ByDecision} experiments=${rows} />`}
    ${rows.length === 2 && html`<h2>As text</h2><${Difference} before=${rows[0].originalConfig} after=${rows[1].originalConfig} from=${rows[0].id} to=${rows[1].id} />`}</div>`}</${Load}>`;
}

/** @param {{e: any}} props */
function OfExperiment({ e }) {
  const trials = useGet(`experiments/${e.id}/trials?limit=100`, [`experiment:${e.id}`]);
  return html`<${Load} of=${trials}>${(/** @type {any} */ data) => html`<${Charts} e=${e} names=${metricNames(data.trials).filter((name) => name === `validation.${e.searcherMetric}`)} />`}</${Load}>`;
}

/** @param {{ids: string[]}} props */
function Trials({ ids }) {
  const all = ids.map((id) => useGet(`trials/${id}`, [`trial:${id}`]));
  const failed = all.find((each) => each.error && !each.data);
  const rows = all.map((each) => each.data?.trial).filter(Boolean);
  const experimentId = rows[0]?.experimentId;
  const parent = useGet(experimentId ? `experiments/${experimentId}` : null);
  const isOne = rows.every((t) => t.experimentId === experimentId);
  const names = [...new Set(rows.flatMap((t) => Object.keys(t.hparams ?? {})))].sort();
  const metrics = metricNames(rows).slice(0, 20);
  const last = (/** @type {any} */ t, /** @type {string} */ name) => {
    const [group, ...rest] = name.split(".");
    const key = /** @type {Record<string, string>} */ ({ training: "avg_metrics", validation: "validation_metrics" })[group] ?? group;
    return metric(t.summaryMetrics?.[key]?.[rest.join(".")]?.last);
  };
  return html`<${Load} of=${failed ?? { data: rows.length === ids.length ? rows : undefined, error: null }}>${() => html`<div class="stack"><${Head} title="Compare trials ${ids.join(", ")}" />
    <${Side} label="trials" things=${rows} title=${(/** @type {any} */ t) => html`<a href="/det/trials/${t.id}">trial ${t.id}</a>`} lines=${[
      ["state", (/** @type {any} */ t) => html`<${State} state=${t.state} />`], ["experiment", (/** @type {any} */ t) => html`<a href="/det/experiments/${t.experimentId}">${t.experimentId}</a>`], ["steps", (/** @type {any} */ t) => t.totalBatchesProcessed], ["duration", (/** @type {any} */ t) => lasted(t.startTime, t.endTime)],
      ...metrics.map((name) => [name, (/** @type {any} */ t) => last(t, name)]), ...names.map((name) => [name, (/** @type {any} */ t) => hparam(t.hparams?.[name] ?? "–")])]} />
    ${isOne && parent.data && html`<h2>Learning curves</h2><${Charts} e=${parent.data.experiment} names=${metrics} trialIds=${ids.map(Number)} />`}</div>`}</${Load}>`;
}

/** Things as columns, facts as rows; what differs is marked. @param {{label: string, things: any[], title: (thing: any) => any, lines: any[]}} props */
function Side({ label, things, title, lines }) {
  return html`<${Table} label=${label} rows=${lines} id=${(/** @type {any} */ [name]) => name} columns=${[{ key: "name", title: "", cell: (/** @type {any} */ [name]) => html`<span class="muted">${name}</span>` },
    ...things.map((thing, i) => ({ key: String(i), title: title(thing), cell: (/** @type {any} */ [, of]) => of(thing) }))]} />`;
}

/** @param {any} value @param {string} [prefix] @returns {Record<string, string>} */
function flattened(value, prefix = "") {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return { [prefix]: JSON.stringify(value) };
  return Object.assign({}, ...Object.entries(value).map(([key, part]) => flattened(part, prefix ? `${prefix}.${key}` : key)));
}
