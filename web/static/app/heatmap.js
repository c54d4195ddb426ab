// Two hyperparameters against the metric: a cell for each pair of values or of ranges, and the trials that are in it.
import { html, useMemo, useRef, useState } from "./html.js";
import { count, hparam, many, metric } from "./format.js";
import { setQuery, useQuery } from "./router.js";
import { Saves } from "./saves.js";
import { traced, useWidth } from "./svg.js";
import { Choice, Table } from "./ui.js";

const [MOST_VALUES, STEPS, MOST_LISTED] = [12, 7, 20];
const [LEFT, RIGHT, TOP, BOTTOM, CELL, READABLE] = [104, 22, 26, 46, 34, 46];

/**
 * @typedef {{label: string, from?: number, to?: number}} Place
 * @typedef {{places: Place[], isRanges: boolean, isLog: boolean, placeOf: (value: any) => number}} Axis `placeOf`: -1 for what has no value
 * @typedef {{i: number, j: number, members: number[], best: number, mean: number}} Cell `members`: places in the lists of trials
 */

/** What the configuration says of a hyperparameter; nested ones are named `a.b`. @param {any} space @param {string} name @returns {any} */
export function specOf(space, name) {
  if (!space || typeof space !== "object") return undefined;
  if (space[name] !== undefined) return space[name];
  for (let dot = name.indexOf("."); dot > 0; dot = name.indexOf(".", dot + 1)) {
    const found = specOf(space[name.slice(0, dot)], name.slice(dot + 1));
    if (found !== undefined) return found;
  }
  return undefined;
}

/** How values become rows or columns: a few as they are, many numbers as ranges. @param {any[]} values @param {any} spec @param {number} [most] places @returns {Axis} */
export function axisOf(values, spec, most = MOST_VALUES) {
  const present = values.filter((value) => value !== null && value !== undefined);
  const kinds = new Map();
  for (const value of present) kinds.set(JSON.stringify(value), (kinds.get(JSON.stringify(value)) ?? 0) + 1);
  const isNumeric = present.every((value) => typeof value === "number");
  if (isNumeric && kinds.size > most) return rangesOf(present, spec, most);
  const often = [...kinds].sort((a, b) => b[1] - a[1]).slice(0, kinds.size > most ? most - 1 : most).map(([kind]) => JSON.parse(kind));
  const shown = often.sort((a, b) => (isNumeric ? a - b : hparam(a).localeCompare(hparam(b))));
  const at = new Map(shown.map((value, i) => [JSON.stringify(value), i]));
  const places = shown.map((value) => ({ label: hparam(value) }));
  if (kinds.size > shown.length) places.push({ label: `${kinds.size - shown.length} others` });
  return { places, isRanges: false, isLog: false, placeOf: (value) => (value === null || value === undefined ? -1 : at.get(JSON.stringify(value)) ?? shown.length) };
}

/** Ranges of equal width, on a logarithmic scale for `log`; those of the configuration, and beyond if trials are. @param {number[]} values @param {any} spec @param {number} most @returns {Axis} */
function rangesOf(values, spec, most) {
  const isLog = spec?.type === "log" && values.every((value) => value > 0);
  const isWhole = !isLog && values.every(Number.isInteger);
  const scaled = (/** @type {number} */ value) => (isLog ? Math.log10(value) : value);
  const back = (/** @type {number} */ value) => (isLog ? Number((10 ** value).toPrecision(2)) : value);
  const bound = (/** @type {any} */ value) => (typeof value === "number" ? [isLog ? value * Math.log10(spec.base ?? 10) : value] : []);
  const all = [...values.map(scaled), ...bound(spec?.minval), ...bound(spec?.maxval)];
  const low = all.reduce((a, b) => Math.min(a, b));
  const high = all.reduce((a, b) => Math.max(a, b)) + (isWhole ? 1 : 0);
  const ranges = Math.min(most, values.length < 60 ? 6 : 10);
  const width = isWhole ? Math.ceil((high - low) / ranges) : (high - low) / ranges;
  const n = Math.ceil((high - low) / width - 1e-9);
  const places = Array.from({ length: n }, (_, i) => {
    const [from, to] = [back(low + i * width), back(low + (i + 1) * width)];
    return { from, to, label: isWhole ? (width === 1 ? edge(from) : `${edge(from)} to ${edge(to - 1)}`) : `${edge(from)} to ${edge(to)}` };
  });
  const placeOf = (/** @type {any} */ value) => (typeof value === "number" ? Math.min(n - 1, Math.max(0, Math.floor((scaled(value) - low) / width + 1e-9))) : -1);
  return { places, isRanges: true, isLog, placeOf };
}

/** The cells that have trials, by `i-j`. @param {Axis} across @param {Axis} up @param {any[]} xs @param {any[]} ys @param {number[]} values @param {boolean} smaller is better @returns {Map<string, Cell>} */
export function cellsOf(across, up, xs, ys, values, smaller) {
  const found = new Map();
  values.forEach((value, k) => {
    const [i, j] = [across.placeOf(xs[k]), up.placeOf(ys[k])];
    if (i < 0 || j < 0) return;
    const key = `${i}-${j}`;
    const cell = found.get(key);
    if (!cell) found.set(key, { i, j, members: [k], best: value, mean: value });
    else {
      cell.members.push(k);
      cell.best = smaller ? Math.min(cell.best, value) : Math.max(cell.best, value);
      cell.mean += (value - cell.mean) / cell.members.length;
    }
  });
  return found;
}

/** Steps of colour from the worst to the best value; a tenth of the worst cells may lie beyond the first. @param {number[]} values @param {boolean} smaller @returns {{bounds: number[], stepOf: (value: number) => number}} */
export function stepsOf(values, smaller) {
  const sorted = [...values].sort((a, b) => (smaller ? b - a : a - b));
  const worst = sorted[Math.floor((sorted.length - 1) / 10)];
  const best = sorted[sorted.length - 1];
  const bounds = Array.from({ length: STEPS + 1 }, (_, i) => worst + (i / STEPS) * (best - worst));
  const stepOf = (/** @type {number} */ value) => (best === worst ? STEPS : Math.min(STEPS, Math.max(1, 1 + Math.floor((STEPS * (value - worst)) / (best - worst) + 1e-9))));
  return { bounds, stepOf };
}

/** @param {{e: any, found: any}} props `found`: columns of the API */
export function HeatMap({ e, found }) {
  const names = Object.keys(found.hyperparameters);
  const [asked, setAcross] = useQuery("across", names[0]);
  const across = names.includes(asked) ? asked : names[0];
  const [askedUp, setUp] = useQuery("up", names.find((name) => name !== across));
  const up = names.includes(askedUp) ? askedUp : names[1];
  const [shows, setShows] = useQuery("cell", "best");
  const [chosen] = useQuery("at");
  const smaller = e.config.searcher.smaller_is_better;
  const drawn = useMemo(() => {
    const [xs, ys] = [found.hyperparameters[across], found.hyperparameters[up]];
    const [x, y] = [axisOf(xs, specOf(e.hyperparameters, across)), axisOf(ys, specOf(e.hyperparameters, up))];
    return { x, y, cells: cellsOf(x, y, xs, ys, found.values, smaller) };
  }, [found, across, up]);
  const other = (/** @type {(name: string) => void} */ set) => (/** @type {string} */ name) => {
    setQuery({ at: "" });
    set(name);
  };
  const options = names.map((name) => /** @type {[string, string]} */ ([name, name]));
  const cell = drawn.cells.get(chosen);
  return html`<section class="card" aria-label="heat map"><div class="row spread"><h2>Two hyperparameters against ${e.searcherMetric}</h2><div class="row">
      <${Choice} label="across" value=${across} onChange=${other(setAcross)} options=${options} /><${Choice} label="up" value=${up} onChange=${other(setUp)} options=${options} />
      <${Choice} label="cell shows" value=${shows} onChange=${setShows} options=${[["best", "the best trial"], ["mean", "the mean"]]} /></div></div>
    <${Picture} e=${e} drawn=${drawn} across=${across} up=${up} shows=${shows === "mean" ? "mean" : "best"} chosen=${chosen} smaller=${smaller} />
    ${cell ? html`<${Members} e=${e} found=${found} cell=${cell} title="${across} ${drawn.x.places[cell.i].label}, ${up} ${drawn.y.places[cell.j].label}" smaller=${smaller} />` : html`<p class="muted">Choose a cell to list its trials.</p>`}</section>`;
}

/** @param {{e: any, drawn: {x: Axis, y: Axis, cells: Map<string, Cell>}, across: string, up: string, shows: "best" | "mean", chosen: string, smaller: boolean}} props */
function Picture({ e, drawn, across, up, shows, chosen, smaller }) {
  const { x, y, cells } = drawn;
  const picture = useRef(/** @type {any} */ (null));
  const [box, width] = useWidth();
  const [at, setAt] = useState("");
  const list = [...cells.values()];
  const steps = stepsOf(list.map((cell) => cell[shows]), smaller);
  const left = width < 500 ? 70 : LEFT;
  const [w, h] = [(width - left - RIGHT) / x.places.length, CELL];
  const height = TOP + y.places.length * h + BOTTOM;
  const reachable = cells.has(at) ? at : cells.has(chosen) ? chosen : list[0] && `${list[0].i}-${list[0].j}`;
  const move = (/** @type {KeyboardEvent} */ event, /** @type {Cell} */ cell) => {
    const step = /** @type {Record<string, [number, number]>} */ ({ ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] })[event.key];
    if (event.key === "Enter" || event.key === " ") setQuery({ at: `${cell.i}-${cell.j}` });
    else if (!step) return;
    event.preventDefault();
    for (let i = cell.i, j = cell.j; step && i >= 0 && j >= 0 && i < x.places.length && j < y.places.length; ) {
      [i, j] = [i + step[0], j + step[1]];
      if (!cells.has(`${i}-${j}`)) continue;
      setAt(`${i}-${j}`);
      picture.current.querySelector(`[data-cell="${i}-${j}"]`)?.focus();
      break;
    }
  };
  const says = (/** @type {Cell} */ cell) => `${across} ${x.places[cell.i].label}, ${up} ${y.places[cell.j].label}: ${shows} ${e.searcherMetric} ${metric(cell[shows])}, ${many(cell.members.length, "trial")}`;
  return html`<div ref=${box} class="stack tight"><svg class="picture heat" ref=${picture} viewBox="0 0 ${width} ${height}" role="group" aria-label="${up} by ${across}: ${cells.size} of ${x.places.length * y.places.length} cells have trials">
      <text x="0" y="12">${short(up, width < 500 ? 24 : 60)} ↑</text><text x=${width - RIGHT} y=${height - 6} text-anchor="end">${short(across, width < 500 ? 24 : 60)} →</text>
      ${x.places.map((_, i) => y.places.map((_, j) => !cells.has(`${i}-${j}`) && html`<circle class="none" key="${i}-${j}" cx=${left + (i + 0.5) * w} cy=${TOP + (y.places.length - j - 0.5) * h} r="1.5" />`))}
      ${list.map((cell) => {
        const key = `${cell.i}-${cell.j}`;
        const [cx, cy, step] = [left + cell.i * w, TOP + (y.places.length - 1 - cell.j) * h, steps.stepOf(cell[shows])];
        return html`<g key=${key} data-cell=${key} class="cell s${step}" role="button" tabindex=${key === reachable ? 0 : -1} aria-pressed=${key === chosen} aria-label=${says(cell)}
          onClick=${() => setQuery({ at: key === chosen ? "" : key })} onKeyDown=${(/** @type {any} */ event) => move(event, cell)}><title>${says(cell)}</title>
          <rect x=${cx + 1} y=${cy + 1} width=${Math.max(1, w - 2)} height=${h - 2} rx="3" />
          ${w >= READABLE && html`<text x=${cx + w / 2} y=${cy + 15} text-anchor="middle">${metric(cell[shows])}</text><text class="n" x=${cx + w / 2} y=${cy + 27} text-anchor="middle">${count(cell.members.length)}</text>`}</g>`;
      })}
      ${labels(x, w, left, true).map(([at, text]) => html`<text key="x${at}" x=${at} y=${height - BOTTOM + 16} text-anchor="middle">${text}</text>`)}
      ${labels(y, h, 0, false).map(([at, text]) => html`<text key="y${at}" x=${left - 8} y=${height - BOTTOM - at + 4} text-anchor="end">${short(text, width < 500 ? 9 : 15)}</text>`)}</svg>
    <div class="row spread"><${Legend} steps=${steps} name="${shows} ${e.searcherMetric}" smaller=${smaller} />
      <${Saves} name="heat map" draw=${() => ({ ...traced(picture.current), title: `${up} and ${across} against ${e.searcherMetric}`, about: `${many(list.reduce((n, cell) => n + cell.members.length, 0), "trial")}; a cell has its ${shows} ${e.searcherMetric}, and below it how many trials it has`, keys: keysOf(steps, `${shows} ${e.searcherMetric}`, smaller) })}
        table=${() => [[across, up, "trials", "best", "mean"], [list.map((cell) => x.places[cell.i].label), list.map((cell) => y.places[cell.j].label), list.map((cell) => cell.members.length), list.map((cell) => cell.best), list.map((cell) => cell.mean)]]} /></div></div>`;
}

/** The colours in words, for a file. @param {ReturnType<typeof stepsOf>} steps @param {string} name @param {boolean} smaller */
function keysOf({ bounds }, name, smaller) {
  const [worse, better] = smaller ? ["≥", "≤"] : ["≤", "≥"];
  const says = (/** @type {number} */ i) => (i === 0 ? `${name} ${worse} ${metric(bounds[1])}` : i === STEPS - 1 ? `${better} ${metric(bounds[i])}` : `to ${metric(bounds[i + 1])}`);
  return Array.from({ length: STEPS }, (_, i) => ({ label: says(i), fill: `var(--heat-${i + 1})` }));
}

/** Where an axis says what: at the edges of ranges, in the middle of values; fewer if they would touch. @param {Axis} axis @param {number} size of a place @param {number} start @param {boolean} isAcross @returns {[number, string][]} */
function labels(axis, size, start, isAcross) {
  const { places } = axis;
  const last = places[places.length - 1];
  const texts = axis.isRanges ? [...places.map((place) => edge(place.from)), edge(last.to)] : places.map((place) => place.label);
  const room = isAcross ? 7 * Math.min(12, Math.max(...texts.map((text) => text.length))) + 8 : 14;
  const every = axis.isRanges ? Math.max(1, Math.ceil(room / size)) : 1;
  return texts.map((text, i) => /** @type {[number, string]} */ ([start + (axis.isRanges ? i : i + 0.5) * size, isAcross ? short(text, axis.isRanges ? 12 : Math.max(3, Math.floor(size / 6.5))) : text])).filter((_, i) => i % every === 0);
}

/** @param {{steps: ReturnType<typeof stepsOf>, name: string, smaller: boolean}} props */
function Legend({ steps, name, smaller }) {
  const { bounds } = steps;
  return html`<div class="row tight heat" role="img" aria-label="${name}: from ${metric(bounds[1])} and worse to ${metric(bounds[STEPS - 1])} and better; a dot: no trial"><span class="muted">${name} ${smaller ? "≥" : "≤"} ${metric(bounds[1])}</span>
    <svg width=${STEPS * 22} height="14" aria-hidden="true">${bounds.slice(1).map((_, i) => html`<g key=${i} class="cell s${i + 1}"><rect x=${i * 22} width="21" height="14" rx="2" /></g>`)}</svg><span class="muted">${smaller ? "≤" : "≥"} ${metric(bounds[STEPS - 1])}</span>
    <svg width="24" height="14" aria-hidden="true"><circle class="none" cx="14" cy="7" r="1.5" /></svg><span class="muted">no trial</span></div>`;
}

/** @param {{e: any, found: any, cell: Cell, title: string, smaller: boolean}} props */
function Members({ e, found, cell, title, smaller }) {
  const sorted = [...cell.members].sort((a, b) => (smaller ? 1 : -1) * (found.values[a] - found.values[b]));
  const names = Object.keys(found.hyperparameters).slice(0, 8);
  return html`<div class="stack tight"><div class="row spread"><h3>${title}: ${many(sorted.length, "trial")}</h3><div class="row tight">${sorted.length > 1 && html`<a class="button small" href="/det/compare?trials=${sorted.slice(0, 6).map((k) => found.trialIds[k]).join(",")}">Compare the best</a>`}<button class="quiet small" onClick=${() => setQuery({ at: "" })}>Close</button></div></div>
    <${Table} label="trials of the cell" rows=${sorted.slice(0, MOST_LISTED)} id=${(/** @type {number} */ k) => found.trialIds[k]} columns=${[
      { key: "id", title: "Trial", num: true, cell: (/** @type {number} */ k) => html`<a href="/det/trials/${found.trialIds[k]}">${found.trialIds[k]}</a>` },
      { key: "metric", title: e.searcherMetric, num: true, cell: (/** @type {number} */ k) => metric(found.values[k]) },
      ...names.map((name) => ({ key: `h.${name}`, title: name, num: true, cell: (/** @type {number} */ k) => hparam(found.hyperparameters[name][k] ?? "–") }))]} />
    ${sorted.length > MOST_LISTED && html`<p class="muted">The ${MOST_LISTED} best of ${count(sorted.length)}.</p>`}</div>`;
}

/** @param {number | undefined} value that bounds a range */
const edge = (value) => metric(value).replace(/\.?0+e/, "e");

/** @param {string} text @param {number} most */
export const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
