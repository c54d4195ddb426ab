// Hyperparameters against the metric: a heat map of two, parallel coordinates with brushes, and a scatter for each.
import { html, useMemo, useRef, useState } from "./html.js";
import { query } from "./api.js";
import { useGet } from "./data.js";
import { count, hparam, many, metric } from "./format.js";
import { listOf, textOf } from "./grid.js";
import { HeatMap, short, specOf } from "./heatmap.js";
import { Importance } from "./importance.js";
import { metricNames } from "./metrics.js";
import { go, setQuery, useQuery } from "./router.js";
import { Saves } from "./saves.js";
import { traced } from "./svg.js";
import { Choice, Empty, Load } from "./ui.js";

const [W, H, TOP, BOTTOM, SIDE] = [900, 320, 34, 26, 50];

/** Lines and circles that a page draws without delay. */
const MOST_DRAWN = 1000;
const MOST_OFFERED = 300;

/** Against the metric of the search, or another one that its trials report. @param {{e: any}} props */
export function Hyperparameters({ e }) {
  const main = `validation.${e.searcherMetric}`;
  const usual = e.config.searcher.smaller_is_better ? "smallest" : "largest";
  const [of] = useQuery("of", main);
  const [best, setBest] = useQuery("best", usual);
  const [typed, setTyped] = useState(/** @type {string | null} */ (null)); // what arrives meanwhile must not undo it
  const choose = (/** @type {string} */ name) => {
    setTyped(null);
    setQuery({ of: name === main ? "" : name, best: "", at: "", brush: "" });
  };
  const trials = useGet(`experiments/${e.id}/trials${query({ limit: 100, sortBy: "SORT_BY_BATCHES_PROCESSED", orderBy: "ORDER_BY_DESC" })}`);
  const columns = useGet(`undeterred/experiments/${e.id}/hyperparameters${query({ metric: of === main ? "" : of })}`, [`experiment:${e.id}`]);
  const known = [main, ...metricNames(trials.data?.trials ?? []).filter((name) => name !== main)];
  return html`<div class="stack"><div class="row"><label class="row tight"><span class="muted">metric</span><input list="metrics" value=${typed ?? of} size="24" onInput=${(/** @type {any} */ event) => setTyped(event.target.value)} onChange=${(/** @type {any} */ event) => choose(event.target.value.trim())} /></label>
      <datalist id="metrics">${known.slice(0, MOST_OFFERED).map((name) => html`<option key=${name} value=${name} />`)}</datalist>
      ${of !== main && html`<${Choice} label="best is the" value=${best} onChange=${setBest} options=${[["smallest", "smallest"], ["largest", "largest"]]} /><button class="small" onClick=${() => choose(main)}>The search's metric</button>`}</div>
    <${Load} of=${columns} height=${320}>${(/** @type {any} */ found) => {
    const names = Object.keys(found.hyperparameters);
    const against = of === main ? e : another(e, found, of, best === "smallest");
    if (found.values.length < 2) return html`<${Empty} title="Two trials with ${against === e ? "a validation" : of} are needed"><p>Then their hyperparameters are drawn against ${against.searcherMetric}.</p></${Empty}>`;
    if (!names.length) return html`<${Empty} title="All trials have the same hyperparameters"><p>What differs between them is drawn against ${against.searcherMetric}.</p></${Empty}>`;
    return html`<${Importance} e=${against} metric=${of === main ? "" : of} />${names.length > 1 && html`<${HeatMap} e=${against} found=${found} />`}<${Drawn} e=${against} found=${found} names=${names} />`;
  }}</${Load}></div>`;
}

/** The experiment as if its search were about another metric. @param {any} e @param {any} found @param {string} name @param {boolean} smaller is better */
function another(e, found, name, smaller) {
  const best = found.values.reduce((/** @type {number} */ top, /** @type {number} */ value, /** @type {number} */ k) => ((smaller ? value < found.values[top] : value > found.values[top]) ? k : top), 0);
  return { ...e, searcherMetric: name, bestTrialId: found.trialIds[best], config: { ...e.config, searcher: { ...e.config.searcher, smaller_is_better: smaller } } };
}

/** @param {{e: any, found: any, names: string[]}} props */
function Drawn({ e, found, names }) {
  const trials = useMemo(() => bestOf(found, names, e.config.searcher.smaller_is_better), [found]);
  const less = trials.length < found.values.length;
  return html`${less && html`<p class="muted">Below, the ${count(trials.length)} best of ${count(found.values.length)} trials are drawn.</p>`}
    <${ParallelCoordinates} e=${e} trials=${trials} names=${names} /><div class="cards">${names.map((name) => html`<${Scatter} key=${name} e=${e} trials=${trials} name=${name} />`)}</div>`;
}

/** @param {any} found @param {string[]} names @param {boolean} smaller is better */
function bestOf(found, names, smaller) {
  const order = found.values.map((/** @type {number} */ _, /** @type {number} */ k) => k).sort((/** @type {number} */ a, /** @type {number} */ b) => (smaller ? 1 : -1) * (found.values[a] - found.values[b]));
  return order.slice(0, MOST_DRAWN).map((/** @type {number} */ k) => ({ id: found.trialIds[k], searcherMetricValue: found.values[k], hparams: Object.fromEntries(names.map((name) => [name, found.hyperparameters[name][k]])) }));
}

/** How a value becomes a place from 0 to 1, and back to words. @param {any} e @param {any[]} values @param {string} name */
function scaleOf(e, values, name) {
  if (values.every((value) => typeof value === "number")) {
    const isLog = specOf(e.hyperparameters, name)?.type === "log" && values.every((value) => value > 0);
    const on = (/** @type {number} */ value) => (isLog ? Math.log10(value) : value);
    const low = Math.min(...values.map(on));
    const high = Math.max(...values.map(on));
    const place = (/** @type {number} */ value) => (high > low ? (on(value) - low) / (high - low) : 0.5);
    const ticks = [0, 0.5, 1].map((share) => /** @type {[number, string]} */ ([share, metric(isLog ? 10 ** (low + share * (high - low)) : low + share * (high - low))]));
    return { place, ticks };
  }
  const kinds = [...new Set(values.map((value) => JSON.stringify(value)))].sort();
  const place = (/** @type {any} */ value) => (kinds.length > 1 ? kinds.indexOf(JSON.stringify(value)) / (kinds.length - 1) : 0.5);
  return { place, ticks: kinds.slice(0, 12).map((kind, i) => /** @type {[number, string]} */ ([kinds.length > 1 ? i / (kinds.length - 1) : 0.5, hparam(JSON.parse(kind)).slice(0, 14)])) };
}

const THINNEST = 0.02;
/** Which part of which axis is chosen: shares of its length, from below. @param {string} text of the address @param {string[]} axes @returns {Record<string, [number, number]>} */
export function brushesOf(text, axes) {
  const found = listOf(text, axes.length).map((each) => /^(.+)~(\d(?:\.\d+)?)~(\d(?:\.\d+)?)$/s.exec(each));
  return Object.fromEntries(found.flatMap((each) => (each && axes.includes(each[1]) ? [[each[1], [Number(each[2]), Number(each[3])]]] : [])));
}

/** The same for the address; a click is no brush, and takes one away. @param {Record<string, [number, number]>} brushes */
export const textOfBrushes = (brushes) => textOf(Object.entries(brushes).filter(([, [low, high]]) => high - low >= THINNEST).map(([name, [low, high]]) => `${name}~${low.toFixed(3)}~${high.toFixed(3)}`));

/** From worst to best, also by lightness. @param {number} share */
const shade = (share) => `hsl(${210 - 180 * share} 70% ${62 - 22 * share}%)`;

/** @param {{e: any, trials: any[], names: string[]}} props */
function ParallelCoordinates({ e, trials, names }) {
  const picture = useRef(/** @type {any} */ (null));
  const [held, keep] = useQuery("brush");
  const [drawing, setDrawing] = useState(/** @type {Record<string, [number, number]>} */ ({}));
  const drag = useRef(/** @type {any} */ (null));
  const smaller = e.config.searcher.smaller_is_better;
  const axes = useMemo(() => [...names.map((name) => ({ name, ...scaleOf(e, trials.map((t) => t.hparams[name]), name), of: (/** @type {any} */ t) => t.hparams[name] })),
    { name: e.searcherMetric, ...scaleOf({}, trials.map((t) => t.searcherMetricValue), ""), of: (/** @type {any} */ t) => t.searcherMetricValue }], [trials, names]);
  /** In the address, so that a link shows the same trials; one that is being drawn is not yet. */
  const brushes = { ...brushesOf(held, axes.map((axis) => axis.name)), ...drawing };
  const x = (/** @type {number} */ i) => SIDE + (i * (W - 2 * SIDE)) / Math.max(1, axes.length - 1);
  const y = (/** @type {number} */ share) => H - BOTTOM - share * (H - TOP - BOTTOM);
  const quality = (/** @type {any} */ t) => {
    const share = axes[axes.length - 1].place(t.searcherMetricValue);
    return smaller ? 1 - share : share;
  };
  const fits = (/** @type {any} */ t) => axes.every((axis) => {
    const brush = brushes[axis.name];
    const share = axis.place(axis.of(t));
    return !brush || (share >= brush[0] && share <= brush[1]);
  });
  const shareAt = (/** @type {any} */ event) => {
    const box = picture.current.getBoundingClientRect();
    const at = ((event.clientY - box.top) / box.height) * H;
    return Math.min(1, Math.max(0, (H - BOTTOM - at) / (H - TOP - BOTTOM)));
  };
  const kept = trials.filter(fits);
  const ordered = [...trials].sort((a, b) => Number(fits(a)) - Number(fits(b)) || quality(a) - quality(b));
  return html`<section class="card" aria-label="parallel coordinates"><div class="row spread"><h2>Parallel coordinates</h2><div class="row tight"><span class="muted" role="status">${kept.length} of ${trials.length} trials</span>
      ${Object.keys(brushes).length > 0 && html`<button class="small" onClick=${() => keep("")}>Clear brushes</button>`}
      <${Saves} name="parallel coordinates" draw=${() => ({ ...traced(picture.current), title: `Hyperparameters against ${e.searcherMetric}`, about: `${kept.length} of ${many(trials.length, "trial")}; the thick line is the best trial`, keys: [[0, "worst"], [0.5, "between"], [1, "best"]].map(([share, label]) => ({ label, shape: "line", stroke: shade(Number(share)) })) })}
        table=${() => [["trial", ...axes.map((a) => a.name)], [trials.map((t) => t.id), ...axes.map((a) => trials.map(a.of))]]} /></div></div>
    <svg class="picture" ref=${picture} viewBox="0 0 ${W} ${H}" role="img" aria-label="a line for each of ${trials.length} trials over ${names.length} hyperparameters; drag along an axis to choose"
      onPointerMove=${(/** @type {any} */ event) => {
        if (!drag.current) return;
        const to = shareAt(event);
        setDrawing({ [drag.current.name]: [Math.min(drag.current.from, to), Math.max(drag.current.from, to)] });
      }} onPointerUp=${() => {
        const name = drag.current?.name;
        if (name) keep(textOfBrushes({ ...brushes, [name]: drawing[name] ?? [0, 0] }));
        setDrawing({});
        drag.current = null;
      }}>
      ${ordered.map((t) => html`<polyline key=${t.id} points=${axes.map((axis, i) => `${x(i).toFixed(1)},${y(axis.place(axis.of(t))).toFixed(1)}`).join(" ")} fill="none" stroke=${fits(t) ? shade(quality(t)) : "var(--line)"} stroke-width=${t.id === e.bestTrialId ? 3 : 1.3} opacity=${fits(t) ? 0.9 : 0.5}
        onClick=${() => go(`/det/trials/${t.id}`)} style=${{ cursor: "pointer" }}><title>trial ${t.id}: ${metric(t.searcherMetricValue)}</title></polyline>`)}
      ${axes.map((axis, i) => html`<g key=${axis.name}><line class="axis" x1=${x(i)} x2=${x(i)} y1=${y(0)} y2=${y(1)} /><text x=${x(i)} y="16" text-anchor="middle">${short(axis.name, 18)}</text>
        ${axis.ticks.map(([share, text]) => html`<text key=${share} x=${x(i) + (i === axes.length - 1 ? -6 : 6)} y=${y(share) + 4} text-anchor=${i === axes.length - 1 ? "end" : "start"}>${text}</text>`)}
        ${brushes[axis.name] && html`<rect x=${x(i) - 7} width="14" y=${y(brushes[axis.name][1])} height=${Math.max(2, y(brushes[axis.name][0]) - y(brushes[axis.name][1]))} fill="var(--focus)" opacity="0.25" />`}
        <rect x=${x(i) - 10} width="20" y=${y(1)} height=${y(0) - y(1)} fill="transparent" style=${{ cursor: "ns-resize", touchAction: "none" }} onPointerDown=${(/** @type {any} */ event) => {
          event.currentTarget.ownerSVGElement.setPointerCapture(event.pointerId);
          drag.current = { name: axis.name, from: shareAt(event) };
        }} /></g>`)}</svg></section>`;
}

/** @param {{e: any, trials: any[], name: string}} props */
function Scatter({ e, trials, name }) {
  const picture = useRef(/** @type {any} */ (null));
  const [w, h, left, bottom] = [420, 240, 56, 34];
  const across = scaleOf(e, trials.map((t) => t.hparams[name]), name);
  const up = scaleOf({}, trials.map((t) => t.searcherMetricValue), "");
  const x = (/** @type {number} */ share) => left + 8 + share * (w - left - 24);
  const y = (/** @type {number} */ share) => h - bottom - 8 - share * (h - bottom - 24);
  return html`<section class="card" aria-label="${name} against ${e.searcherMetric}"><div class="row spread"><h3>${name}</h3><${Saves} name="${name} against ${e.searcherMetric}" draw=${() => ({ ...traced(picture.current), title: `${name} against ${e.searcherMetric}`, about: many(trials.length, "trial"), keys: [{ label: "trial", fill: "var(--run)" }, { label: "best trial", fill: "var(--accent)" }] })}
      table=${() => [["trial", name, e.searcherMetric], [trials.map((t) => t.id), trials.map((t) => t.hparams[name]), trials.map((t) => t.searcherMetricValue)]]} /></div>
    <svg class="picture" ref=${picture} viewBox="0 0 ${w} ${h}" role="img" aria-label="${trials.length} trials: ${name} against ${e.searcherMetric}">
      <line class="axis" x1=${left} x2=${w - 8} y1=${h - bottom} y2=${h - bottom} /><line class="axis" x1=${left} x2=${left} y1="8" y2=${h - bottom} />
      ${across.ticks.map(([share, text]) => html`<text key=${share} x=${x(share)} y=${h - bottom + 16} text-anchor=${share === 1 ? "end" : "middle"}>${text}</text>`)}${up.ticks.map(([share, text]) => html`<text key=${share} x=${left - 6} y=${y(share) + 4} text-anchor="end">${text}</text>`)}
      ${trials.map((t) => html`<circle key=${t.id} cx=${x(across.place(t.hparams[name]))} cy=${y(up.place(t.searcherMetricValue))} r=${t.id === e.bestTrialId ? 6 : 4} fill=${t.id === e.bestTrialId ? "var(--accent)" : "var(--run)"} opacity="0.7" style=${{ cursor: "pointer" }} onClick=${() => go(`/det/trials/${t.id}`)}><title>trial ${t.id}: ${name} ${hparam(t.hparams[name])}, ${e.searcherMetric} ${metric(t.searcherMetricValue)}</title></circle>`)}
    </svg></section>`;
}
