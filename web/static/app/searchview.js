// A search as its decisions: a slider over all of them, rungs with who stands where, and why.
import { html, useEffect, useState } from "./html.js";
import { useGet, useRested } from "./data.js";
import { clock, exact, many, metric } from "./format.js";
import { setQuery, useLocation } from "./router.js";
import { may, session } from "./session.js";
import { Saves } from "./saves.js";
import { paint, tag, words } from "./svg.js";
import { colour } from "./theme.js";
import { Empty, Load, Table } from "./ui.js";
import { Fork } from "./experimentdialogs.js";

const SHOWN = 60;
/** So many trials of each rung are shown at first, and all when asked for: thousands are as many links. */
const [BEST, EVERY] = [100, 1_000_000];

/** Where a search after a decision is read. @param {number} id of its experiment @param {number} at @param {number} most decisions to tell of @param {boolean} every with all trials of each rung */
export const searchAt = (id, at, most, every) => `undeterred/experiments/${id}/search?at=${at}&most=${most}&trials=${every ? EVERY : BEST}`;
const OUTCOMES = /** @type {Record<string, string>} */ ({ goes_on: "on", promoted: "on", finished: "top", stopped: "stop", failed: "fail", replaced: "stop" });

/** @param {{e: any}} props */
export function Search({ e }) {
  const { query } = useLocation();
  const at = Number(query.get("at") ?? 0);
  const [moved, setMoved] = useState(at);
  useEffect(() => setMoved(at), [at]);
  const rested = useRested(moved, 60);
  const [fork, setFork] = useState(false);
  const [every, setEvery] = useState(false);
  const view = useGet(searchAt(e.id, rested, SHOWN, every), rested ? [] : [`experiment:${e.id}`]);
  useEffect(() => {
    if (rested !== at) setQuery({ at: rested ? String(rested) : "" });
  }, [rested]);
  // The page stays as it is while the next point in time is read.
  const [last, setLast] = useState(/** @type {any} */ (undefined));
  useEffect(() => {
    if (view.data) setLast(view.data);
  }, [view.data]);
  const shown = view.data ?? last;
  return html`<${Load} of=${{ ...view, data: shown }}>${(/** @type {any} */ s) => {
    if (!s.count) return html`<${Empty} title="Nothing has been decided yet"></${Empty}>`;
    return html`<div class="stack"><section class="card stack tight" aria-label="point in time">
        <div class="row spread"><h2>After decision ${s.at} of ${s.count}${s.at === s.count ? " (now)" : ""}</h2><div class="row">
          <button disabled=${s.at <= 1} onClick=${() => setMoved(s.at - 1)} aria-label="one decision back">◂</button><button disabled=${s.at >= s.count} onClick=${() => setMoved(s.at + 1 >= s.count ? 0 : s.at + 1)} aria-label="one decision on">▸</button>
          <button aria-pressed=${rested === 0} onClick=${() => setMoved(0)}>Now</button>${may("CREATE_EXPERIMENT", e.workspaceId) && html`<button onClick=${() => setFork(true)}>Fork here</button>`}</div></div>
        <input type="range" min="1" max=${s.count} value=${moved || s.count} aria-label="decision" onInput=${(/** @type {any} */ event) => setMoved(Number(event.target.value) >= s.count ? 0 : Number(event.target.value))} />
        <ul class="why">${s.sentences.map((/** @type {string} */ text) => html`<li key=${text}>${text}</li>`)}</ul></section>
      ${s.rungs.length > 0 && html`<section class="card" aria-label="rungs"><h2>Rungs</h2><${Rungs} rungs=${s.rungs} metricName=${s.metric} onEvery=${() => setEvery(true)} /></section>`}
      <${Table} label="decisions" rows=${s.decisions} id=${(/** @type {any} */ d) => d.number} columns=${[
        { key: "n", title: "Decision", num: true, cell: (/** @type {any} */ d) => html`<button class="small" aria-pressed=${d.number === s.at} onClick=${() => setMoved(d.number)}>${d.number}</button>` },
        { key: "time", title: "Time", cell: (/** @type {any} */ d) => html`<time datetime=${d.time} title=${exact(d.time)}>${clock(d.time)}</time>` },
        { key: "event", title: "What happened", cell: (/** @type {any} */ d) => d.event },
        { key: "trial", title: "Trial", num: true, cell: (/** @type {any} */ d) => (d.trialId ? html`<a href="/det/trials/${d.trialId}">${d.trialId}</a>` : "–") },
        { key: "value", title: s.metric, num: true, cell: (/** @type {any} */ d) => metric(d.value) },
        { key: "actions", title: "What was done", wrap: true, cell: (/** @type {any} */ d) => d.error || d.actions || "nothing" },
        { key: "why", title: "Why", wrap: true, cell: (/** @type {any} */ d) => html`${d.sentences.map((/** @type {string} */ text) => html`<div key=${text}>${text}</div>`)}` },
      ]} />
      ${temporal(s.workflowId) && html`<p class="muted">For debugging: <a href=${temporal(s.workflowId)} target="_blank" rel="noreferrer">this search in Temporal's Web UI</a></p>`}
      ${fork && html`<${Fork} e=${e} at=${s.at} onClose=${() => setFork(false)} />`}</div>`;
  }}</${Load}>`;
}

/** How an outcome is drawn in a file: as the page has it. @type {Record<string, import("./svg.js").Key>} */
const LOOKS = {
  on: { label: "went on", fill: "var(--ok-soft)", stroke: "var(--ok)" }, top: { label: "finished", fill: "var(--accent-soft)", stroke: "var(--accent)", width: 2 },
  stop: { label: "stopped", fill: "var(--off-soft)", stroke: "var(--line-strong)", dash: "3 2" }, fail: { label: "failed", fill: "var(--bad-soft)", stroke: "var(--bad)" },
  "": { label: "not compared", fill: "var(--surface)", stroke: "var(--line-strong)" },
};
const [CELL, CELLS, LEFT, RIGHT] = [32, 20, 150, 110];

/** How many results a rung has, and how many of them are shown. @param {any} rung */
const results = (rung) => `${many(rung.results, "result")}${rung.entries.length < rung.results ? `, the best ${rung.entries.length}` : ""}`;

/** Rungs as a drawing: as many rows as the cells of each need. @param {any[]} rungs @param {string} metricName @returns {import("./svg.js").Drawing} */
export function drawnRungs(rungs, metricName) {
  const width = LEFT + CELLS * CELL + RIGHT;
  let y = 0;
  const body = rungs.map((rung) => {
    const rows = Math.max(1, Math.ceil(rung.entries.length / CELLS));
    const top = y;
    y += Math.max(34, rows * 26) + 12;
    return [
      words(0, top + 13, `bracket ${rung.bracket}, rung ${rung.rung}`, { "font-weight": 600, "font-size": 12, fill: colour("--ink") }),
      words(0, top + 29, `at ${rung.length}: ${results(rung)}`),
      ...rung.entries.map((/** @type {any} */ entry, /** @type {number} */ i) => {
        const look = LOOKS[OUTCOMES[entry.outcome] ?? ""];
        const [left, up] = [LEFT + (i % CELLS) * CELL, top + Math.floor(i / CELLS) * 26];
        return tag("rect", { x: left, y: up, width: CELL - 3, height: 22, rx: 4, ...paint("fill", look.fill ?? ""), ...paint("stroke", look.stroke ?? ""), "stroke-width": look.width, "stroke-dasharray": look.dash })
          + words(left + (CELL - 3) / 2, up + 15, `${entry.trialId}${entry.wentOn ? "↑" : ""}`, { "text-anchor": "middle", fill: colour("--ink") });
      }),
      words(width - 2, top + 15, `threshold ${metric(rung.threshold)}`, { "text-anchor": "end" }),
    ].join("");
  }).join("");
  const present = new Set(rungs.flatMap((rung) => rung.entries.map((/** @type {any} */ entry) => OUTCOMES[entry.outcome] ?? "")));
  return { body, width, height: y, title: "Rungs", about: `Trials of each rung by ${metricName}, the best first; ↑ went on`, keys: Object.entries(LOOKS).filter(([kind]) => present.has(kind)).map(([, look]) => look) };
}

/** @param {{rungs: any[], metricName: string, name?: string, onEvery: () => void}} props `name`: of what is saved; `onEvery`: all trials of each rung are wanted */
export function Rungs({ rungs, metricName, name = "rungs", onEvery }) {
  const rows = rungs.flatMap((rung) => rung.entries.map((/** @type {any} */ entry, /** @type {number} */ i) => [rung.bracket, rung.rung, rung.length, i + 1, entry.trialId, entry.metric, (entry.outcome ?? "not compared").replaceAll("_", " "), rung.threshold]));
  return html`<div class="rungs">${rungs.map((rung) => html`<div class="rung" key="${rung.bracket}.${rung.rung}">
    <div><strong>bracket ${rung.bracket}, rung ${rung.rung}</strong><div class="muted">at ${rung.length}: ${results(rung)}</div></div>
    <div class="cells">${rung.entries.map((/** @type {any} */ entry, /** @type {number} */ i) => html`<a key=${entry.requestId} class=${OUTCOMES[entry.outcome] ?? ""} href=${entry.trialId ? `/det/trials/${entry.trialId}` : null}
      title="trial ${entry.trialId}: ${metricName} ${metric(entry.metric)}, place ${i + 1} of ${rung.results}, ${(entry.outcome ?? "not compared").replaceAll("_", " ")}">${entry.trialId}${entry.wentOn ? "↑" : ""}</a>`)}</div>
    <div class="num"><span class="muted">threshold</span> ${metric(rung.threshold)}</div></div>`)}
    <p class="muted row tight"><span class="cells"><span class="cell">7↑</span></span> went on; dashed: stopped; best first, by ${metricName}</p>
    <div class="row">${rungs.some((rung) => rung.entries.length < rung.results) && html`<button class="small" onClick=${onEvery}>Show all trials of each rung</button>`}<${Saves} name=${name} draw=${() => drawnRungs(rungs, metricName)} table=${() => [["bracket", "rung", "length", "place", "trial", metricName, "outcome", "threshold"], Array.from({ length: 8 }, (_, k) => rows.map((row) => row[k]))]} /></div></div>`;
}

/** @param {string} workflow */
function temporal(workflow) {
  const base = session()?.master?.temporalUi;
  return base ? `${base}/namespaces/default/workflows/${encodeURIComponent(workflow)}` : null;
}
