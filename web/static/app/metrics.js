// Learning curves: of an experiment's trials, or of one trial; live, zoomed together.
import { html, useCallback, useEffect, useMemo, useRef, useState } from "./html.js";
import { get, query } from "./api.js";
import { Chart, lineColour } from "./chart.js";
import { aligned, withPoints } from "./curves.js";
import { metric } from "./format.js";
import { lazy } from "./lazy.js";
import { watch } from "./live.js";
import { go, setQuery, useLocation, useQuery } from "./router.js";
import { useGet, useRested } from "./data.js";
import { Choice, Empty, Failed, Load } from "./ui.js";

const [Grouped, GroupBy] = ["Grouped", "GroupBy"].map((name) => lazy(name, () => import("./groups.js")));
/** Of pixels, of which each has its extremes: fewer where many curves lie over each other. */
const COLUMNS = 500;
const COLUMNS_OF_MANY = 250;
const MANY = 30;
const MOST_CURVES = 100;
const FIRST_CHARTS = 4;
const DRAW_EVERY_MS = 100;
const NO_STREAM_MS = 1500;
const RESTED_MS = 150;
/** @type {Record<string, string>} */
const AXES = { batches: "steps", epoch: "epochs", time: "seconds" };

/** Metrics that trials have, by the names of groups as they are stored. @param {any[]} trials @returns {string[]} */
export function metricNames(trials) {
  const found = new Set();
  for (const trial of trials)
    for (const [group, names] of Object.entries(trial.summaryMetrics ?? {}))
      for (const [name, about] of Object.entries(/** @type {any} */ (names)))
        if (about?.type === undefined || about.type === "number") found.add(`${({ avg_metrics: "training", validation_metrics: "validation" })[group] ?? group}.${name}`);
  const order = ["validation", "training"];
  const rank = (/** @type {string} */ text) => (order.indexOf(text.split(".")[0]) + order.length + 1) % (order.length + 1);
  return [...found].sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
}

/** The charts of an experiment. @param {{e: any, trialIds?: number[], colours?: Map<number, string>}} props */
export function MetricCharts({ e, trialIds }) {
  const trials = useGet(`experiments/${e.id}/trials${query({ limit: 100, sortBy: "SORT_BY_BATCHES_PROCESSED", orderBy: "ORDER_BY_DESC" })}`, [`experiment:${e.id}`]);
  // The metric of the search is known before the trials are: its chart need not wait for them.
  const first = e.bestTrialId && !trials.error ? [`validation.${e.searcherMetric}`] : null;
  const shown = trials.data?.trials.filter((/** @type {any} */ t) => !trialIds || trialIds.includes(t.id));
  const names = shown ? metricNames(shown) : first;
  return names ? html`<${Charts} e=${e} names=${names} trialIds=${trialIds} />` : html`<${Load} of=${trials} height=${320}>${() => null}</${Load}>`;
}

/** @param {{e: any, names: string[], trialIds?: number[]}} props */
export function Charts({ e, names, trialIds }) {
  const { query: now } = useLocation();
  const [by, setAxis] = useQuery("x", "batches");
  const axis = by in AXES ? by : "batches";
  const [log, setLog] = useQuery("log");
  const [smoothing, setSmoothing] = useQuery("smooth", "0");
  const [some, setSome] = useQuery("metric");
  const zoom = now.get("zoom")?.split("-").map(Number);
  if (!names.length) return html`<${Empty} title="No metrics yet"><p>Curves appear with the first report: <code>core_context.train.report_training_metrics(…)</code></p></${Empty}>`;
  const main = `validation.${e.searcherMetric}`;
  const ordered = [...(names.includes(main) ? [main] : []), ...names.filter((name) => name !== main)];
  const matching = some ? ordered.filter((name) => name.toLowerCase().includes(some.toLowerCase())) : ordered;
  const shown = matching.slice(0, now.has("all") ? 60 : FIRST_CHARTS);
  return html`<section class="stack tight" aria-label="metrics"><h2 class="visually-hidden">Metrics</h2><div class="row">
      <${Choice} label="by" value=${axis} onChange=${setAxis} options=${Object.entries(AXES)} />
      <${Choice} label="scale" value=${log} onChange=${setLog} options=${[["", "linear"], ["1", "logarithmic"]]} />
      <label class="row tight"><span class="muted">smooth</span><input type="range" min="0" max="0.98" step="0.02" value=${smoothing} aria-label="smoothing" onInput=${(/** @type {any} */ event) => setSmoothing(event.target.value)} /></label>
      ${e.numTrials > 1 && trialIds?.length !== 1 && html`<${GroupBy} e=${e} />`}
      ${names.length > FIRST_CHARTS && html`<input type="search" aria-label="filter metrics" placeholder="filter ${names.length} metrics" value=${some} onInput=${(/** @type {any} */ event) => setSome(event.target.value)} />`}
      ${zoom && html`<button class="small" onClick=${() => setQuery({ zoom: "" })}>Whole range</button>`}</div>
    <div class="cards">${shown.map((name) => html`<div class="card" key=${name}><${MetricChart} e=${e} name=${name} trialIds=${trialIds} axis=${axis} log=${log === "1"} smoothing=${Number(smoothing)} zoom=${axis === "batches" ? zoom : undefined} /></div>`)}</div>
    ${matching.length > shown.length && html`<div class="row"><button onClick=${() => setQuery({ all: "1" })}>Show ${Math.min(60, matching.length) - shown.length} more</button><span class="muted">${shown.length} of ${matching.length} metrics</span></div>`}</section>`;
}

/** One metric of several trials. @param {{e: any, name: string, trialIds?: number[], axis: any, log: boolean, smoothing: number, zoom?: number[]}} props */
function MetricChart({ e, name, trialIds, axis, log, smoothing, zoom }) {
  const [curves, setCurves] = useState(/** @type {any[] | null} */ (null));
  const [late, setLate] = useState(/** @type {any[]} */ ([]));
  const [drawnBy, setDrawnBy] = useState(axis); // what `curves` have is asked for by the axis
  const [error, setError] = useState(/** @type {any} */ (null));
  const [grouping] = useQuery("group");
  const turn = useRef(0);
  const waiting = useRef(/** @type {any[]} */ ([]));
  const timer = useRef(/** @type {number | undefined} */ (undefined));
  const goesOn = useRef(true);
  goesOn.current = !e.endTime;
  const [group, ...rest] = name.split(".");
  const inGroup = rest.join(".");
  const ids = trialIds?.join(",");
  const range = zoom?.join("-");
  const columns = (trialIds?.length ?? e.numTrials) > MANY ? COLUMNS_OF_MANY : COLUMNS;
  const weight = useRested(smoothing, RESTED_MS);
  const only = useMemo(() => (ids === undefined ? null : new Set(ids.split(",").map(Number))), [ids]);

  const load = useCallback(async () => {
    const own = ++turn.current;
    const [start, end] = range ? range.split("-").map(Number) : [0, 0];
    try {
      const found = await get(`undeterred/experiments/${e.id}/curves${query({ metric: name, columns, axis, smoothing: weight, trialIds: ids?.split(","), startBatches: Math.max(0, Math.floor(start)), endBatches: Math.ceil(end) })}`);
      if (own !== turn.current) return;
      // What was reported while the answer was on its way is in `waiting`, and is put in by its step: once only.
      setCurves(withPoints(found.curves, waiting.current.splice(0), group, inGroup, only, weight));
      setDrawnBy(axis);
      setLate(found.late);
      setError(null);
    } catch (problem) {
      if (own === turn.current) setError(problem);
    }
  }, [e.id, name, ids, range, axis, weight, columns]);
  useEffect(() => {
    // Of what goes on, the curve is read once its points come: read before, it would lack some, and be read again.
    if (!goesOn.current) load();
    const late = goesOn.current ? setTimeout(load, NO_STREAM_MS) : undefined;
    let version = "";
    const stop = watch(`curve:${e.id}`, {
      points(points) {
        waiting.current.push(...points);
        timer.current ??= setTimeout(() => {
          timer.current = undefined;
          setCurves((now) => (now === null ? now : withPoints(now, waiting.current.splice(0), group, inGroup, only, weight)));
        }, DRAW_EVERY_MS);
      },
      version(next) {
        if (version && next !== version) load();
        version = next;
      },
      started() {
        clearTimeout(late);
        if (goesOn.current) load();
      },
      reset: load,
    });
    return () => {
      stop();
      clearTimeout(late);
      clearTimeout(timer.current);
      timer.current = undefined;
    };
  }, [e.id, name, load, only, weight]);

  const ordered = useMemo(() => best(curves ?? [], e), [curves]);
  const isGrouped = Boolean(grouping) && ordered.length > 1;
  const data = useMemo(() => (isGrouped ? [] : aligned(ordered, drawnBy, columns)), [ordered, drawnBy, columns, isGrouped]);
  const bands = useMemo(() => bandsOf(late, ordered, drawnBy), [late, ordered, drawnBy]);
  const series = useMemo(
    () => ordered.map((curve, i) => ({ label: `trial ${curve.trialId}`, colour: lineColour(curve.trialId), width: curve.trialId === e.bestTrialId || (i === 0 && ordered.length > 1 && !e.bestTrialId) ? 2.5 : 1.3 })),
    [ordered.map((curve) => curve.trialId).join(","), e.bestTrialId],
  );
  if (error && curves === null) return html`<${Failed} error=${error} again=${load} />`;
  if (curves === null) return html`<div class="skeleton" style=${{ height: "330px" }}></div>`;
  if (!ordered.length) return html`<h3>${name}</h3><p class="muted">No numbers of ${name}${range ? " in this range" : " yet"}.</p>`;
  /** What a chart of curves has, whether they are drawn one by one or by group. */
  const place = {
    log, xLabel: drawnBy === "time" ? "s" : AXES[drawnBy], sync: `experiment-${e.id}-${drawnBy}`,
    onZoom: (/** @type {[number, number] | null} */ to) => drawnBy === "batches" && setQuery({ zoom: to ? `${Math.floor(to[0])}-${Math.ceil(to[1])}` : "" }),
  };
  if (isGrouped) return html`<${Grouped} e=${e} name=${name} curves=${ordered} by=${grouping} axis=${drawnBy} place=${place} most=${MOST_CURVES} />`;
  const odd = ordered.reduce((n, curve) => n + curve.values.filter((/** @type {any} */ value) => typeof value === "string").length, 0);
  return html`<${Chart} title=${name} data=${data} series=${series} bands=${bands} ...${place} onPick=${(/** @type {number} */ i) => go(`/det/trials/${ordered[i].trialId}`)} />
    ${bands.length > 0 && html`<p class="muted">Shaded: ${late.reduce((sum, each) => sum + each.count, 0)} reports waited on their hosts' disks while the API did not answer; none is lost.</p>`}
    ${odd > 0 && html`<p class="band">${odd} of the values drawn are NaN or infinite: the line has gaps there.</p>`}
    ${ordered.length >= MOST_CURVES && html`<p class="muted">The ${MOST_CURVES} best trials are drawn; the table of trials has all.</p>`}
    <span class="visually-hidden">latest: ${ordered.slice(0, 3).map((curve) => `trial ${curve.trialId} ${metric(curve.values[curve.values.length - 1])}`).join(", ")}</span>`;
}

/** The best trial is drawn last, on top of the others. @param {any[]} curves @param {any} e */
function best(curves, e) {
  return [...curves].sort((a, b) => Number(a.trialId === e.bestTrialId) - Number(b.trialId === e.bestTrialId) || a.trialId - b.trialId);
}

const WAITED = "shaded: reports waited on their hosts' disks";

/** Where reports waited, on the axis of a chart. @param {any[]} late @param {any[]} curves @param {string} axis @returns {[number, number, string][]} */
function bandsOf(late, curves, axis) {
  if (axis === "batches") return late.map((each) => [each.firstBatches - 0.5, each.lastBatches + 0.5, WAITED]);
  if (axis !== "time") return [];
  const begins = new Map(curves.map((curve) => [curve.trialId, curve.times[0] ?? 0]));
  return late.map((each) => [each.made - begins.get(each.trialId), each.came - begins.get(each.trialId), WAITED]);
}
