// What the machines of a trial did while it trained, as the profiler measured it: a chart of each measure.
import { html, useMemo, useRef } from "./html.js";
import { query } from "./api.js";
import { Chart, lineColour } from "./chart.js";
import { aligned } from "./curves.js";
import { useGet } from "./data.js";
import { bytes, duration, many, metric } from "./format.js";
import { setQuery, useQuery } from "./router.js";
import { Empty, Load } from "./ui.js";

const COLUMNS = 300;
const MOST_LINES = 64;
const MOST_IN_LEGEND = 8;
const DASHES = [6, 4];

const SECONDS = { text: duration, incrs: [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800] };
const PERCENT = { text: (/** @type {any} */ value) => (value === null ? "–" : `${metric(value)} %`), range: /** @type {[number, number]} */ ([0, 100]) };
const BYTES = { text: (/** @type {any} */ value) => (value === null ? "–" : bytes(value)), incrs: Array.from({ length: 50 }, (_, i) => 2 ** i) };
const PLAIN = { text: metric };
const UNITS = /** @type {Record<string, any>} */ ({ "%": PERCENT, bytes: BYTES, "bytes/s": BYTES });
/** Title, unit, and the measures of a chart with their words; others have charts of their own. @type {[string, string, Record<string, string>][]} */
const CHARTS = [
  ["CPU in use", "%", { cpu_util_simple: "" }],
  ["Memory free", "bytes", { memory_free: "" }],
  ["GPU in use", "%", { gpu_util: "" }],
  ["GPU memory free", "bytes", { gpu_free_memory: "" }],
  ["Disk throughput", "bytes/s", { disk_throughput_read: "read", disk_throughput_write: "written" }], // the second one is dashed
  ["Disk operations", "1/s", { disk_iops: "" }],
  ["Disk space in use", "%", { disk_util: "" }],
  ["Network throughput", "bytes/s", { net_throughput_recv: "received", net_throughput_sent: "sent" }],
];

/**
 * @typedef {{group: string, agentId: string, device: string, name: string, times: number[], values: number[]}} SystemSeries
 * @typedef {SystemSeries & {label: string, isDashed: boolean}} Line */

/** Series by the chart that they are in, in the order of the charts. @param {SystemSeries[]} series @returns {{title: string, unit: string, lines: Line[]}[]} */
export function charts(series) {
  /** @type {Map<string, any>} */
  const found = new Map(CHARTS.map(([title, unit]) => [title, { title, unit, lines: [] }]));
  for (const each of series) {
    const known = CHARTS.find(([, , names]) => each.name in names);
    const title = known ? known[0] : `${each.group}: ${each.name}`;
    if (!found.has(title)) found.set(title, { title, unit: "", lines: [] });
    found.get(title).lines.push({ ...each, label: [each.agentId, each.device, known?.[2][each.name]].filter(Boolean).join(" "), isDashed: known && Object.keys(known[2]).indexOf(each.name) > 0 });
  }
  return [...found.values()].filter(({ lines }) => lines.length);
}

/** Spans without a run between two runs, in seconds from the start. @param {{startedAt: string, endedAt: string | null}[]} runs @param {number} start in ms @returns {[number, number, string][]} */
export function gaps(runs, start) {
  const at = (/** @type {string} */ time) => (Date.parse(time) - start) / 1000;
  return runs.slice(1).flatMap((run, i) => {
    const ended = runs[i].endedAt;
    return ended && at(run.startedAt) > at(ended) ? [[at(ended), at(run.startedAt), "no slots"]] : [];
  });
}

/** Rows of a chart; a line stops where a run ended. @param {SystemSeries[]} lines @param {[number, number, string][]} pauses @param {number} start in ms */
export function rows(lines, pauses, start) {
  const curves = lines.map((line, i) => {
    const points = line.times.map((time, k) => [time - start / 1000, line.values[k]]);
    const [first, last] = [points[0]?.[0] ?? 0, points[points.length - 1]?.[0] ?? 0];
    for (const [from, to] of pauses) if (first < from && to < last) points.push([(from + to) / 2, NaN]);
    points.sort((a, b) => a[0] - b[0]);
    return { trialId: i, batches: points.map(([x]) => x), times: [], epochs: [], values: points.map(([, y]) => y), count: points.length };
  });
  return aligned(curves, "batches", COLUMNS);
}

/** @param {{t: any}} props */
export function SystemCharts({ t }) {
  const [zoom, setZoom] = useQuery("zoom");
  const start = Date.parse(t.startTime);
  const [from, to] = zoom.split("-").map(Number);
  const isZoomed = Boolean(zoom) && from >= 0 && to > from;
  const moment = (/** @type {number} */ seconds) => new Date(start + 1000 * seconds).toISOString();
  const list = useGet(`undeterred/trials/${t.id}/system-metrics${query({ columns: COLUMNS, start: isZoomed ? moment(from) : "", end: isZoomed ? moment(to) : "" })}`, [`system:${t.id}`]);
  const before = useRef(/** @type {any} */ (undefined)); // while another range is read, the one before stays
  before.current = list.data ?? before.current;
  const shown = list.error ? list : { ...list, data: before.current };
  return html`<${Load} of=${shown} height=${300}>${(/** @type {any} */ data) => {
    if (!data.series.length && !isZoomed) return html`<${Empty} title="No system metrics were reported"><p>Switch the profiler on in the configuration of the experiment:</p><code>profiling: {enabled: true}</code><p>or in the code, when it is needed:</p><code>core_context.profiler.on()</code></${Empty}>`;
    const pauses = gaps(data.runs, start);
    const first = data.series.reduce((/** @type {number} */ least, /** @type {any} */ each) => Math.min(least, each.times[0] - start / 1000), Infinity);
    return html`<section class="stack tight" aria-label="system metrics"><h2 class="visually-hidden">System metrics</h2><div class="row spread"><p class="muted">Since the trial's start. ${many(data.runs.length, "run")}${pauses.length ? "; shaded: between them it held no slots" : ""}. ${data.isWhole ? "" : "There are more values than are drawn here: these are the newest. "}Drag over a chart to zoom.</p>
        ${!data.isWhole && first > (isZoomed ? from : 0) + 1 && first < Infinity && html`<button class="small" onClick=${() => setZoom(`${isZoomed ? from : 0}-${Math.ceil(first)}`)}>Earlier</button>`}${isZoomed && html`<button class="small" onClick=${() => setZoom("")}>Whole range</button>`}</div>
      ${data.series.length ? html`<div class="cards">${charts(data.series).map((chart) => html`<div class="card" key=${chart.title}><${SystemChart} ...${chart} pauses=${pauses} start=${start} /></div>`)}</div>` : html`<p class="muted">Nothing was reported between ${duration(from)} and ${duration(to)}.</p>`}</section>`;
  }}</${Load}>`;
}

/** @param {{title: string, unit: string, lines: Line[], pauses: [number, number, string][], start: number}} props */
function SystemChart({ title, unit, lines, pauses, start }) {
  const drawn = lines.slice(0, MOST_LINES);
  const data = useMemo(() => rows(drawn, pauses, start), [lines, pauses, start]);
  const series = drawn.map((line, i) => ({ label: line.label, colour: lineColour(i), width: 1.5, dash: line.isDashed ? DASHES : undefined }));
  return html`<${Chart} title=${unit ? `${title} (${unit})` : title} data=${data} series=${series} xLabel="s" height=${190} sync="system" bands=${pauses} x=${SECONDS} y=${UNITS[unit] ?? PLAIN}
      onZoom=${(/** @type {[number, number] | null} */ to) => setQuery({ zoom: to ? `${Math.max(0, Math.floor(to[0]))}-${Math.ceil(to[1])}` : "" })} />
    ${series.length <= MOST_IN_LEGEND ? html`<p class="row muted">${series.map((each) => html`<span class="row tight" key=${each.label}><svg width="14" height="10" aria-hidden="true"><path d="M0 5h14" stroke=${each.colour} stroke-width="3" stroke-dasharray=${each.dash ? "4 2" : null} /></svg>${each.label}</span>`)}</p>`
      : html`<p class="muted">${many(lines.length, "line")}${lines.length > drawn.length ? `, of which ${drawn.length} are drawn` : ""}: point at one to see which it is.</p>`}`;
}
