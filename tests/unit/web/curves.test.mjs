// Run by test_page_modules.py: what the pages compute of curves.
import assert from "node:assert/strict";
import { test } from "node:test";
import { aligned, withPoints } from "../../../web/static/app/curves.js";

/** @param {number[]} steps @param {(number | string)[]} values */
const curve = (steps, values, trialId = 1) => ({ trialId, batches: steps, times: steps.map((step) => 100 + step), epochs: steps.map(() => null), values, count: values.length });
/** @param {number} trialId @param {number} step @param {any} value */
const point = (trialId, step, value) => [trialId, "training", step, 100 + step, { loss: value }];

test("rows share one grid; NaN is a gap, and a step without a report is passed over", () => {
  const [x, one, two] = aligned([curve([1, 3], [5, "NaN"]), curve([2, 3], [7, 8], 2)], "batches", 10);
  assert.deepEqual(x, [1, 2, 3]);
  assert.deepEqual(one, [5, undefined, null]);
  assert.deepEqual(two, [undefined, 7, 8]);
  assert.deepEqual(aligned([curve([1, 3], [5, 6])], "time", 10)[0], [0, 2]);
});

test("a spike of one report is in the grid of many", () => {
  const steps = Array.from({ length: 20_000 }, (_, i) => i);
  const values = steps.map((step) => (step === 777 ? 99 : step === 888 ? -99 : Math.sin(step)));
  const [x, row] = aligned([curve(steps, values)], "batches", 50);
  assert.equal(x.length, 200);
  assert.ok(row.includes(99) && row.includes(-99));
});

test("points come into their curve once, in the order of steps", () => {
  const before = [curve([1, 2], [5, 6])];
  const after = withPoints(before, [point(1, 4, 8), point(1, 3, 7), point(1, 2, 6.5), point(2, 1, 1), point(1, 5, null)], "training", "loss", null);
  assert.deepEqual(after.map((each) => [each.trialId, each.batches, each.values]), [[1, [1, 2, 3, 4], [5, 6.5, 7, 8]], [2, [1], [1]]]);
  assert.deepEqual(before[0].batches, [1, 2], "what is drawn does not change below the chart");
  assert.equal(withPoints(before, [point(2, 1, 1)], "training", "loss", new Set([1])), before);
});

test("smoothing goes on where the server's ended, as if it had seen all", () => {
  const weight = 0.8;
  const values = [3, 1, 4, "NaN", 1, 5, 9, 2, 6];
  const mean = (/** @type {any[]} */ some) => {
    const numbers = some.filter((value) => typeof value === "number");
    const shares = numbers.map((_, i) => weight ** (numbers.length - 1 - i));
    return numbers.reduce((sum, value, i) => sum + value * shares[i], 0) / shares.reduce((sum, share) => sum + share, 0);
  };
  const told = values.slice(0, 5);
  const first = { ...curve([0, 1, 2, 3, 4], told.map((value, i) => (value === "NaN" ? value : mean(told.slice(0, i + 1))))), count: 4 };
  const [found] = withPoints([first], values.map((value, step) => point(1, step, value)), "training", "loss", null, weight);
  assert.equal(found.values.length, values.length);
  found.values.slice(5).forEach((/** @type {any} */ value, i) => assert.ok(Math.abs(value - mean(values.slice(0, i + 6))) < 1e-9));
  const [fresh] = withPoints([], values.map((value, step) => point(1, step, value)), "training", "loss", null, weight);
  assert.ok(Math.abs(Number(fresh.values[8]) - mean(values)) < 1e-9);
});
