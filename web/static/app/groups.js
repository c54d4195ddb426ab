// Curves of several trials as one: a line in the middle, and the band that most of them lie in.
import { html, useMemo, useRef } from "./html.js";
import { query } from "./api.js";
import { Chart, lineColour } from "./chart.js";
import { numberOf, positions } from "./curves.js";
import { useGet } from "./data.js";
import { hparam, many, metric } from "./format.js";
import { axisOf, specOf } from "./heatmap.js";
import { useQuery } from "./router.js";
import { Choice, Failed } from "./ui.js";

const [MOST_GROUPS, MOST_X, FEW] = [8, 600, 5];
/** Lines differ also without colour. */
const DASHES = [[], [9, 4], [2, 3], [9, 3, 2, 3]];

/** @typedef {{label: string, ids: number[]}} Group */

/** Hyperparameters that a configuration leaves open; nested ones as `a.b`. @param {any} space @param {string} [prefix] @returns {string[]} */
export function openNames(space, prefix = "") {
  return Object.entries(space ?? {}).flatMap(([name, spec]) => {
    if (spec === null || typeof spec !== "object" || Array.isArray(spec)) return [];
    if (typeof spec.type === "string") return spec.type === "const" ? [] : [`${prefix}${name}`];
    return openNames(spec, `${prefix}${name}.`);
  });
}

/** What curves are put together by, in the address. @param {{e: any}} props */
export function GroupBy({ e }) {
  const [by, setBy] = useQuery("group");
  const [middle, setMiddle] = useQuery("middle", "median");
  const names = openNames(e.hyperparameters).slice(0, 100);
  return html`<${Choice} label="group" value=${by} onChange=${setBy} options=${[["", "each trial"], ["*", "all trials"], ["=", "same hyperparameters"], ...names.map((name) => [`h.${name}`, name])]} />
    ${by && html`<${Choice} label="line" value=${middle} onChange=${setMiddle} options=${[["median", "median"], ["mean", "mean"]]} />`}`;
}

/** Trials by what they are put together by, the largest groups first where they have no order. @param {any} found columns of the API @param {string} by @param {any} space @returns {Group[]} */
export function groupsOf(found, by, space) {
  const ids = /** @type {number[]} */ (found.trialIds);
  if (by === "*") return [{ label: "all trials", ids }];
  if (by === "=") {
    const names = Object.keys(found.hyperparameters);
    const bySame = new Map();
    ids.forEach((id, k) => {
      const key = JSON.stringify(names.map((name) => found.hyperparameters[name][k]));
      const label = names.map((name) => `${name} ${hparam(found.hyperparameters[name][k] ?? "–")}`).join(", ") || "all trials";
      if (!bySame.has(key)) bySame.set(key, { label, ids: [] });
      bySame.get(key).ids.push(id);
    });
    return [...bySame.values()].sort((a, b) => b.ids.length - a.ids.length);
  }
  const name = by.slice(2);
  const values = found.hyperparameters[name];
  if (!values) return [{ label: "all trials", ids }]; // they have the same value, or none
  const axis = axisOf(values, specOf(space, name), MOST_GROUPS - 2);
  const groups = axis.places.map((place) => ({ label: place.label, ids: /** @type {number[]} */ ([]) }));
  const without = { label: "no value", ids: /** @type {number[]} */ ([]) };
  ids.forEach((id, k) => (groups[axis.placeOf(values[k])] ?? without).ids.push(id));
  return [...groups, without].filter((group) => group.ids.length);
}

/** Where lines of groups have points: all steps if there are few. @param {number[][]} xs @returns {number[]} */
export function gridOf(xs) {
  const all = new Set();
  for (const each of xs) for (const x of each) if (Number.isFinite(x)) all.add(x);
  const sorted = [...all].sort((a, b) => a - b);
  if (sorted.length <= MOST_X) return sorted;
  const [low, high] = [sorted[0], sorted[sorted.length - 1]];
  return Array.from({ length: MOST_X }, (_, i) => low + (i / (MOST_X - 1)) * (high - low));
}

/** A curve on a grid: between its points by a straight line, undefined before its first and behind its last. @param {number[]} xs @param {number[]} values @param {number[]} grid */
export function onGrid(xs, values, grid) {
  const known = xs.map((x, i) => [x, values[i]]).filter(([x, value]) => Number.isFinite(x) && Number.isFinite(value));
  let at = 0;
  return grid.map((x) => {
    if (!known.length || x < known[0][0] || x > known[known.length - 1][0]) return undefined;
    while (at < known.length - 2 && known[at + 1][0] <= x) at++;
    const [[x0, y0], [x1, y1]] = [known[at], known[Math.min(at + 1, known.length - 1)]];
    return x1 > x0 ? y0 + ((x - x0) / (x1 - x0)) * (y1 - y0) : y0;
  });
}

/** The part of sorted numbers, by a straight line between two of them. @param {number[]} sorted @param {number} share */
function quantile(sorted, share) {
  const at = share * (sorted.length - 1);
  const low = Math.floor(at);
  return sorted[low] + (at - low) * (sorted[Math.min(low + 1, sorted.length - 1)] - sorted[low]);
}

/**
 * Of each place of the grid: the middle, and the 10th and the 90th percentile, or the least and the most of fewer than five curves.
 * @param {(number | undefined)[][]} rows @param {string} middle @returns {[(number | null)[], (number | null)[], (number | null)[]]}
 */
export function bandOf(rows, middle) {
  /** @type {[(number | null)[], (number | null)[], (number | null)[]]} */
  const band = [[], [], []];
  for (let i = 0; i < (rows[0]?.length ?? 0); i++) {
    const values = /** @type {number[]} */ (rows.map((row) => row[i]).filter((value) => value !== undefined)).sort((a, b) => a - b);
    const [low, high] = values.length < FEW ? [0, 1] : [0.1, 0.9];
    band[0].push(values.length ? (middle === "mean" ? values.reduce((a, b) => a + b) / values.length : quantile(values, 0.5)) : null);
    band[1].push(values.length ? quantile(values, low) : null);
    band[2].push(values.length ? quantile(values, high) : null);
  }
  return band;
}

/** @param {{e: any, name: string, curves: any[], by: string, axis: any, place: any, most: number}} props `place`: scale, axis and zoom of the chart */
export function Grouped({ e, name, curves, by, axis, place, most }) {
  const [middle] = useQuery("middle", "median");
  const asked = useGet(`undeterred/experiments/${e.id}/hyperparameters${query({ trialIds: curves.map((curve) => curve.trialId).sort((a, b) => a - b) })}`);
  const last = useRef(/** @type {any} */ (null)); // that a trial more came does not empty the chart
  last.current = asked.data ?? last.current;
  const found = last.current;
  const { groups, rest, data } = useMemo(() => {
    if (!found) return { groups: [], rest: 0, data: [[]] };
    const byId = new Map(curves.map((curve) => [curve.trialId, curve]));
    const all = groupsOf(found, by, e.hyperparameters).map((group) => ({ ...group, ids: group.ids.filter((id) => byId.has(id)) })).filter((group) => group.ids.length);
    const groups = all.slice(0, MOST_GROUPS);
    const lines = groups.map((group) => group.ids.map((id) => ({ x: positions(byId.get(id), axis), values: byId.get(id).values.map(numberOf) })));
    const grid = gridOf(lines.flat().map((line) => line.x));
    const bands = lines.map((members) => bandOf(members.map((line) => onGrid(line.x, line.values, grid)), middle));
    return { groups, rest: all.length - groups.length, data: [grid, ...bands.flat()] };
  }, [curves, found, by, axis, middle]);
  const soft = groups.length > 3 ? " / 0.09" : " / 0.18"; // many bands lie on each other
  const series = useMemo(() => groups.flatMap((group, i) => {
    const colour = lineColour(i);
    const edge = group.ids.length < FEW ? ["least", "most"] : ["10th percentile", "90th percentile"];
    return [{ label: `${group.label}, ${middle}`, colour, width: 2, dash: DASHES[i % DASHES.length] }, ...edge.map((word) => ({ label: `${group.label}, ${word}`, colour, width: 0 }))];
  }), [groups, middle]);
  const fills = useMemo(() => groups.map((_, i) => /** @type {[number, number, string]} */ ([3 * i + 2, 3 * i + 1, lineColour(i, soft)])), [groups]);
  if (asked.error && !found) return html`<${Failed} error=${asked.error} again=${asked.reload} />`;
  if (!found) return html`<div class="skeleton" style=${{ height: "330px" }}></div>`;
  const latest = (/** @type {number} */ i) => data[3 * i + 1].findLast((/** @type {any} */ value) => value !== null);
  return html`<${Chart} title=${name} data=${data} series=${series} fills=${fills} ...${place} />
    <ul class="row" style=${{ columnGap: "var(--s4)" }} aria-label="groups of ${name}">${groups.map((group, i) => html`<li class="row tight" key=${group.label}><svg width="26" height="12" aria-hidden="true"><rect width="26" height="12" fill=${lineColour(i, soft)} /><line x2="26" y1="6" y2="6" stroke=${lineColour(i)} stroke-width="2" stroke-dasharray=${DASHES[i % DASHES.length].join(" ")} /></svg>
      <span>${group.label}</span><span class="muted">${many(group.ids.length, "trial")}, last ${metric(latest(i))}</span></li>`)}</ul>
    <p class="muted">${groups.some((group) => group.ids.length >= FEW) ? `The band holds 80 % of a group's trials; of fewer than ${FEW}, all.` : "The band holds all trials of a group."}${rest > 0 ? ` ${many(rest, "smaller group")} ${rest === 1 ? "is" : "are"} not drawn.` : ""}${curves.length >= most ? ` Of the ${most} best trials.` : ""}</p>`;
}
