// Curves as plots need them: one grid of x for all series, the extremes of each pixel column kept.

/**
 * `times` and `epochs` are empty unless the curve is drawn by them. `count`: numbers that were reported so far.
 * @typedef {{trialId: number, batches: number[], times: number[], epochs: (number | null)[], values: (number | string)[], count: number}} Curve
 * @typedef {"batches" | "time" | "epoch"} Axis
 */

/** Above so many distinct steps, series are put on a grid of pixel columns. */
const MOST_STEPS = 5000;

/** Where each point of a curve lies. @param {Curve} curve @param {Axis} axis @returns {number[]} */
export function positions(curve, axis) {
  if (axis === "batches") return curve.batches;
  if (axis === "epoch") return curve.epochs.map((epoch, i) => epoch ?? (curve.epochs.some((e) => e !== null) ? NaN : curve.batches[i]));
  const start = curve.times[0] ?? 0;
  return curve.times.map((time) => time - start);
}

/** The wire's words for what JSON has no numbers for. @param {number | string | null} value */
export const numberOf = (value) =>
  typeof value === "string" ? ({ NaN: NaN, Infinity: Infinity, "-Infinity": -Infinity })[value] ?? NaN : value ?? NaN;

/**
 * Rows for uPlot: x, then the values of each curve, null where it has none.
 * @param {Curve[]} curves @param {Axis} axis @param {number} columns of pixels
 */
export function aligned(curves, axis, columns) {
  const series = curves.map((curve) => ({ x: positions(curve, axis), values: curve.values.map(numberOf) }));
  const steps = new Set();
  for (const { x } of series) for (const each of x) if (Number.isFinite(each)) steps.add(each);
  return steps.size <= MOST_STEPS ? exact(series, steps) : gridded(series, columns);
}

/** @param {{x: number[], values: number[]}[]} series @param {Set<number>} steps */
function exact(series, steps) {
  const xs = [...steps].sort((a, b) => a - b);
  const place = new Map(xs.map((x, i) => [x, i]));
  return [xs, ...series.map(({ x, values }) => {
    /** @type {(number | null | undefined)[]} */
    const row = new Array(xs.length).fill(undefined); // undefined: no report there, so that the line goes on
    x.forEach((each, i) => {
      const at = place.get(each);
      if (at !== undefined) row[at] = Number.isFinite(values[i]) ? values[i] : null;
    });
    return row;
  })];
}

/** Four places a column: the first, the least, the most, the last, in their order. @param {{x: number[], values: number[]}[]} series @param {number} columns */
function gridded(series, columns) {
  let low = Infinity;
  let high = -Infinity;
  for (const { x } of series) for (const each of x) {
    if (each < low) low = each;
    if (each > high) high = each;
  }
  const width = (high - low) / columns || 1;
  const xs = Array.from({ length: columns * 4 }, (_, i) => low + (i / 4) * width);
  return [xs, ...series.map(({ x, values }) => {
    /** @type {(number | null | undefined)[]} */
    const row = new Array(xs.length).fill(undefined);
    let begin = 0;
    while (begin < x.length) {
      const column = Math.min(columns - 1, Math.floor((x[begin] - low) / width));
      let end = begin;
      let least = begin;
      let most = begin;
      while (end < x.length && Math.min(columns - 1, Math.floor((x[end] - low) / width)) === column) {
        if (!(values[end] >= values[least])) least = Number.isFinite(values[end]) ? end : least;
        if (!(values[end] <= values[most])) most = Number.isFinite(values[end]) ? end : most;
        end++;
      }
      [...new Set([begin, least, most, end - 1])].sort((a, b) => a - b)
        .forEach((i, k) => (row[column * 4 + k] = Number.isFinite(values[i]) ? values[i] : null));
      begin = end;
    }
    return row;
  })];
}

/**
 * Add reported points. A step that is there already gets the newer value; in a curve that the server smoothed it stays.
 * @param {Curve[]} curves @param {any[]} points @param {string} group @param {string} name @param {Set<number> | null} only @param {number} smoothing
 */
export function withPoints(curves, points, group, name, only, smoothing = 0) {
  const byTrial = new Map(curves.map((curve) => [curve.trialId, curve]));
  const changed = new Set();
  for (const [trialId, inGroup, batches, time, values] of points) {
    if (inGroup !== group || !(name in values) || values[name] === null || (only && !only.has(trialId))) continue;
    let curve = byTrial.get(trialId);
    if (smoothing && curve && curve.batches.length && batches <= curve.batches[curve.batches.length - 1]) continue;
    if (!curve) byTrial.set(trialId, (curve = { trialId, batches: [], times: [], epochs: [], values: [], count: 0 }));
    else if (!changed.has(trialId))
      byTrial.set(trialId, (curve = { ...curve, batches: [...curve.batches], times: [...curve.times], epochs: [...curve.epochs], values: [...curve.values] }));
    changed.add(trialId);
    let at = curve.batches.length;
    while (at > 0 && curve.batches[at - 1] >= batches) at--;
    const isKnown = curve.batches[at] === batches ? 1 : 0;
    const value = smoothing ? smoothed(curve, values[name], smoothing) : values[name];
    curve.batches.splice(at, isKnown, batches);
    curve.times.splice(at, isKnown, time);
    curve.epochs.splice(at, isKnown, values.epoch ?? null);
    curve.values.splice(at, isKnown, value);
  }
  return changed.size ? [...byTrial.values()] : curves;
}

/** The exponential mean, without the bias of its beginning, one number further; as the server has it. @param {Curve} curve @param {number | string} value @param {number} weight */
function smoothed(curve, value, weight) {
  if (typeof value !== "number") return value;
  const last = curve.values.findLast((each) => typeof each === "number");
  const before = typeof last === "number" ? last * (1 - weight ** curve.count) : 0;
  curve.count += 1;
  return (weight * before + (1 - weight) * value) / (1 - weight ** curve.count);
}
