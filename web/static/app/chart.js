// A line chart: uPlot, with what every chart here has: zoom that others follow, a log axis, saving.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./html.js";
import uPlot from "../vendor/uplot.js";
import { metric } from "./format.js";
import { colour } from "./theme.js";
import { Saves } from "./saves.js";

/** @type {Scale} */
const PLAIN = { text: metric };

/**
 * How values of an axis are written; steps between its marks; its range, if it is not that of the values.
 * @typedef {{text: (value: any) => string, incrs?: number[], range?: [number, number]}} Scale
 * `width` 0: the edge of a fill.
 * @typedef {{label: string, colour: string, width?: number, dash?: number[]}} Series
 * @param {{title: string, data: any[], series: Series[], xLabel: string, log?: boolean, height?: number, sync?: string,
 *   onZoom?: (range: [number, number] | null) => void, onPick?: (index: number) => void, bands?: [number, number, string][],
 *   fills?: [number, number, string][], x?: Scale, y?: Scale}} props
 *   `data`: x, then a row for each series; `bands`: from, to, and what it means; `fills`: the upper and the lower series, and the colour between them
 */
export function Chart({ title, data, series, xLabel, log = false, height = 280, sync = "charts", onZoom, onPick, bands = [], fills, x = PLAIN, y = PLAIN }) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const plot = useRef(/** @type {any} */ (null));
  const tip = useRef(/** @type {HTMLParagraphElement | null} */ (null));
  const latest = useRef(/** @type {any} */ ({}));
  latest.current = { series, onZoom, onPick, data, bands };
  const [theme, setTheme] = useState(0);
  useEffect(() => {
    const changed = () => setTheme((n) => n + 1);
    const media = matchMedia("(prefers-color-scheme: dark)");
    window.addEventListener("theme", changed);
    media.addEventListener("change", changed);
    return () => {
      window.removeEventListener("theme", changed);
      media.removeEventListener("change", changed);
    };
  }, []);

  const shape = series.map((each) => `${each.label}|${each.colour}|${each.width ?? 1.5}`).join(";");
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const line = colour("--line");
    const ink = colour("--ink-3");
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "11px system-ui, sans-serif" };
    const own = new uPlot(
      {
        width: element.clientWidth || 600,
        height,
        scales: { x: { time: false }, y: log ? { distr: 3 } : y.range ? { range: y.range } : {} },
        axes: [
          { ...axis, size: 34, incrs: x.incrs, values: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks.map((tick) => x.text(tick)) },
          { ...axis, size: (/** @type {any} */ _, /** @type {string[] | null} */ texts) => Math.max(y === PLAIN ? 58 : 68, 20 + 6.5 * Math.max(0, ...(texts ?? []).map((text) => text.length))),
            incrs: y.incrs, values: (/** @type {any} */ _, /** @type {(number | null)[]} */ ticks) => marks(ticks, y) },
        ],
        cursor: { sync: { key: sync }, focus: { prox: 24 }, drag: { x: true, y: false, uni: 20 }, points: { size: 6 } },
        focus: { alpha: 0.25 },
        series: [{}, ...series.map((each) => ({
          label: each.label, stroke: each.colour, width: each.width ?? 1.5, dash: each.dash, spanGaps: false,
          points: { show: (/** @type {any} */ u, /** @type {number} */ i) => each.width !== 0 && filled(u.data[i]) < 60, size: 4, stroke: each.colour, fill: each.colour },
        }))],
        bands: fills?.map(([top, bottom, fill]) => ({ series: [top + 1, bottom + 1], fill })),
        hooks: {
          setCursor: [(/** @type {any} */ u) => tell(u)],
          setSeries: [(/** @type {any} */ u) => tell(u)],
          setSelect: [(/** @type {any} */ u) => {
            if (u.select.width < 4) return;
            latest.current.onZoom?.([u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")]);
          }],
          drawClear: [(/** @type {any} */ u) => drawBands(u, latest.current.bands)],
          ready: [(/** @type {any} */ u) => {
            u.over.addEventListener("dblclick", () => latest.current.onZoom?.(null));
            u.over.addEventListener("click", () => {
              const focused = u.series.findIndex((/** @type {any} */ s, /** @type {number} */ i) => i > 0 && s._focus);
              if (focused > 0 && u.select.width < 4) latest.current.onPick?.(focused - 1);
            });
          }],
        },
      },
      latest.current.data,
      element,
    );
    plot.current = own;
    const resize = new ResizeObserver(() => own.setSize({ width: element.clientWidth, height }));
    resize.observe(element);
    return () => {
      resize.disconnect();
      own.destroy();
      plot.current = null;
    };
  }, [shape, log, height, sync, theme]);
  useEffect(() => plot.current?.setData(data), [data]);

  const at = (/** @type {number} */ value) => (x === PLAIN ? `${metric(value)} ${xLabel}` : x.text(value));

  /** What is under the cursor. @param {any} u */
  function tell(u) {
    if (!tip.current) return;
    const { idx } = u.cursor;
    const focused = u.series.findIndex((/** @type {any} */ s, /** @type {number} */ i) => i > 0 && s._focus);
    if (idx === null || idx === undefined) tip.current.textContent = "";
    else if (focused > 0) tip.current.textContent = `${u.series[focused].label}: ${y.text(near(u.data[focused], idx))} at ${at(u.data[0][idx])}`;
    else tip.current.textContent = at(u.data[0][idx]);
  }

  const points = useMemo(() => data.slice(1).reduce((sum, row) => sum + filled(row), 0), [data]);
  return html`<figure class="chart" aria-label="${title}: ${series.filter((each) => each.width !== 0).length} curves, ${points} points by ${xLabel}" data-points=${points}>
    <div class="row spread"><figcaption><h3>${title}</h3></figcaption><${Saves} name=${title} draw=${draw} table=${() => [[xLabel, ...series.map((each) => each.label)], data]} /></div>
    <div ref=${box}></div><p class="plot-tip" ref=${tip} aria-hidden="true"></p></figure>`;

  /** With the range and the marks that the screen has now. */
  async function draw() {
    const { plotted } = await import("./plot.js");
    const scale = (/** @type {string} */ key, /** @type {number} */ i) => {
      const { min, max } = plot.current.scales[key];
      const { _splits: at, _values: texts } = plot.current.axes[i];
      return { from: min, to: max, marks: at.map((/** @type {number} */ value, /** @type {number} */ k) => [value, texts[k] ?? ""]) };
    };
    return plotted({ title, xLabel, series, data, bands, fills, x: scale("x", 0), y: { ...scale("y", 1), log } });
  }
}

/** Marks of an axis; with all digits where fewer make two of them the same. @param {(number | null)[]} ticks @param {Scale} scale */
function marks(ticks, scale) {
  const texts = ticks.map((tick) => (tick === null ? "" : scale.text(tick)));
  const shown = texts.filter(Boolean);
  if (scale !== PLAIN || new Set(shown).size === shown.length) return texts;
  const [first, second] = ticks.filter((tick) => tick !== null);
  const digits = Math.min(12, Math.max(0, Math.ceil(-Math.log10(Math.abs(second - first) || 1))));
  return ticks.map((tick) => (tick === null ? "" : tick.toFixed(digits)));
}

/** @param {any[]} row */
const filled = (row) => row.reduce((n, value) => n + (value === null || value === undefined ? 0 : 1), 0);

/** The value at a place, or the nearest before it. @param {any[]} row @param {number} at */
function near(row, at) {
  for (let i = at; i >= 0; i--) if (row[i] !== null && row[i] !== undefined) return row[i];
  return null;
}

/** Times when points waited on the host's disk, and the like. @param {any} u @param {[number, number, string][]} bands */
function drawBands(u, bands) {
  const { ctx } = u;
  ctx.save();
  ctx.fillStyle = colour("--wait-soft");
  for (const [from, to] of bands) {
    const left = Math.max(u.bbox.left, u.valToPos(from, "x", true));
    const right = Math.min(u.bbox.left + u.bbox.width, u.valToPos(to, "x", true));
    if (right > left) ctx.fillRect(left, u.bbox.top, Math.max(2, right - left), u.bbox.height);
  }
  ctx.restore();
}

/** Distinct colours for many series: hues apart by the golden angle, readable in both themes. @param {number} i @param {string} [alpha] such as " / 0.2" */
export function lineColour(i, alpha = "") {
  const isDark = getComputedStyle(document.documentElement).colorScheme === "dark";
  return `hsl(${(i * 137.508 + 210) % 360} ${isDark ? "70% 66%" : "62% 40%"}${alpha})`;
}
