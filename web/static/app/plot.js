// A line chart as a drawing: the range, the marks, the bands and the gaps that the screen shows.
import { many } from "./format.js";
import { colour } from "./theme.js";
import { paint, plain, tag, words } from "./svg.js";

const [W, LEFT, TOP, RIGHT, BOTTOM] = [860, 66, 8, 12, 40];
const MOST_KEYS = 24;
/** Of fewer values each has a dot, as on the screen. */
const FEW = 60;

/**
 * An axis: its range, its marks with their words, and whether it is logarithmic.
 * @typedef {{from: number, to: number, marks: [number, string][], log?: boolean}} Scale
 * @typedef {{title: string, about?: string, xLabel: string, series: import("./chart.js").Series[], data: any[], height?: number, x: Scale, y: Scale,
 *   bands?: [number, number, string][], fills?: [number, number, string][]}} Plot
 */

/** Parts of a row that are drawn in one stroke: null is a gap, undefined is passed over. @param {any[]} xs @param {any[]} ys @param {(y: number) => boolean} fits @returns {[number, number][][]} */
export function strokes(xs, ys, fits) {
  /** @type {[number, number][][]} */
  const found = [[]];
  ys.forEach((y, i) => {
    if (y === undefined) return;
    if (Number.isFinite(y) && fits(y)) found[found.length - 1].push([xs[i], y]);
    else if (found[found.length - 1].length) found.push([]);
  });
  return found.filter((each) => each.length);
}

/** What is said beside lines that are drawn: which is which, and what shades mean. @param {Plot} plot @returns {import("./svg.js").Key[]} */
export function legendOf({ series, bands = [], fills = [] }) {
  const lines = series.map((each, i) => ({ ...each, i })).filter((each) => each.width !== 0);
  const widest = Math.max(...lines.map((each) => each.width ?? 1.5));
  const named = lines.length <= MOST_KEYS ? lines : lines.filter((each) => (each.width ?? 1.5) === widest && lines.some((other) => (other.width ?? 1.5) < widest)); // of many, those that are drawn thicker
  const soft = (/** @type {number} */ i) => fills.find(([, low]) => low === i + 1)?.[2]; // its edges follow a line
  return [
    ...named.map((each) => ({ label: each.label, shape: /** @type {"band" | "line"} */ (soft(each.i) ? "band" : "line"), fill: soft(each.i), stroke: each.colour, width: each.width, dash: each.dash?.join(" ") })),
    ...[...new Set(bands.map(([, , label]) => label))].filter(Boolean).map((label) => ({ label, fill: "var(--wait-soft)", stroke: "var(--wait)" })),
  ];
}

/** @param {Plot} plot @returns {import("./svg.js").Drawing} */
export function plotted(plot) {
  const { title, xLabel, series, data, x, y, bands = [], fills = [], height = 380 } = plot;
  const [right, bottom] = [W - RIGHT, height - BOTTOM];
  const on = (/** @type {Scale} */ scale, /** @type {number} */ value) => (scale.log ? Math.log10(value) : value);
  const share = (/** @type {Scale} */ scale, /** @type {number} */ value) => (on(scale, value) - on(scale, scale.from)) / (on(scale, scale.to) - on(scale, scale.from) || 1);
  const px = (/** @type {number} */ value) => Number((LEFT + share(x, value) * (right - LEFT)).toFixed(1));
  const py = (/** @type {number} */ value) => Number((bottom - share(y, value) * (bottom - TOP)).toFixed(1));
  const fits = (/** @type {number} */ value) => !y.log || value > 0;
  const inside = (/** @type {Scale} */ scale) => (/** @type {[number, string]} */ [value, text]) => text && value >= scale.from && value <= scale.to;
  const [line, shaded] = [colour("--line"), paint("fill", "var(--wait-soft)")];
  const place = { x: LEFT, y: TOP, width: right - LEFT, height: bottom - TOP };
  const [from, to] = data[0].length ? [data[0][0], data[0][data[0].length - 1]] : [0, 0];
  const few = new Set(series.filter((_, i) => data[i + 1].filter(Number.isFinite).length < FEW));
  const body = [
    tag("clipPath", { id: "plot" }, tag("rect", { x: LEFT - 3, y: TOP - 3, width: right - LEFT + 6, height: bottom - TOP + 6 })), // dots at the edge are whole
    ...bands.map(([begin, end]) => [px(Math.max(begin, x.from)), px(Math.min(end, x.to))]).filter(([begin, end]) => end > begin)
      .map(([begin, end]) => tag("rect", { x: begin, y: TOP, width: Math.max(2, end - begin), height: bottom - TOP, ...shaded })),
    ...y.marks.filter(inside(y)).map(([value, text]) => tag("line", { x1: LEFT, x2: right, y1: py(value), y2: py(value), stroke: line }) + words(LEFT - 8, py(value) + 4, text, { "text-anchor": "end" })),
    ...x.marks.filter(inside(x)).map(([value, text]) => tag("line", { x1: px(value), x2: px(value), y1: TOP, y2: bottom, stroke: line }) + words(px(value), bottom + 16, text, { "text-anchor": "middle" })),
    words((LEFT + right) / 2, height - 6, xLabel, { "text-anchor": "middle", fill: colour("--ink-3") }),
    tag("g", { "clip-path": "url(#plot)" }, [
      ...fills.map(([top, low, fill]) => area(strokes(data[0], data[top + 1], fits), strokes(data[0], data[low + 1], fits), fill)),
      ...series.map((each, i) => (each.width === 0 ? "" : strokes(data[0], data[i + 1], fits).map((points) => stroke(each, points)).join(""))),
    ].join("")),
    tag("rect", { ...place, fill: "none", stroke: colour("--line-strong") }),
  ].join("");
  const drawn = series.filter((each) => each.width !== 0).length;
  const part = x.from > from || x.to < to ? `, a part of the range` : "";
  return { body, width: W, height, title, about: plot.about ?? `${many(drawn, "curve")} by ${xLabel}${y.log ? ", logarithmic scale" : ""}${part}`, keys: legendOf(plot) };

  /** @param {import("./chart.js").Series} look @param {[number, number][]} points */
  function stroke(look, points) {
    const [rgb] = plain(look.colour);
    const dots = few.has(look) || points.length === 1 ? points.map(([a, b]) => tag("circle", { cx: px(a), cy: py(b), r: 2, fill: rgb })).join("") : "";
    return dots + tag("polyline", { points: points.map(([a, b]) => `${px(a)},${py(b)}`).join(" "), fill: "none", ...paint("stroke", look.colour), "stroke-width": look.width ?? 1.5, "stroke-dasharray": look.dash?.join(" ") || undefined, "stroke-linejoin": "round" });
  }

  /** Between two rows, as far as both have points. @param {[number, number][][]} tops @param {[number, number][][]} lows @param {string} fill */
  function area(tops, lows, fill) {
    return tops.map((top, i) => tag("polygon", { points: [...top, ...[...(lows[i] ?? [])].reverse()].map(([a, b]) => `${px(a)},${py(b)}`).join(" "), ...paint("fill", fill) })).join("");
  }
}
