// Two searches side by side, each after the same number of its decisions.
import { html, useEffect, useState } from "./html.js";
import { useGet, useRested } from "./data.js";
import { exact, metric } from "./format.js";
import { setQuery, useLocation } from "./router.js";
import { Load } from "./ui.js";
import { Rungs, searchAt } from "./searchview.js";

/** @param {{experiments: any[]}} props two of them */
export function ByDecision({ experiments }) {
  const { query } = useLocation();
  const at = Math.max(0, Math.floor(Number(query.get("at")) || 0));
  const [moved, setMoved] = useState(at);
  useEffect(() => setMoved(at), [at]);
  const rested = useRested(moved, 60);
  useEffect(() => {
    if (rested !== at) setQuery({ at: rested ? String(rested) : "" });
  }, [rested]);
  const searches = experiments.map((e) => useGet(searchAt(e.id, 0, 1, false), [`experiment:${e.id}`]));
  const counts = searches.map((each) => each.data?.count);
  const failed = searches.find((each) => each.error && !each.data);
  return html`<${Load} of=${failed ?? { data: counts.every((count) => count !== undefined) ? counts : undefined, error: null }}>${() => {
    const most = Math.max(...counts);
    if (!most) return html`<p class="muted">Nothing has been decided yet.</p>`;
    const move = (/** @type {number} */ to) => setMoved(to >= most ? 0 : Math.max(1, to));
    const now = Math.min(moved || most, most);
    return html`<section class="stack" aria-label="searches by decision"><div class="card stack tight"><div class="row spread"><h3>After decision ${now} of ${experiments.map((e, i) => `${counts[i]} (${e.id})`).join(" and ")}</h3>
        <div class="row"><button disabled=${now <= 1} onClick=${() => move(now - 1)} aria-label="one decision back">◂</button><button disabled=${now >= most} onClick=${() => move(now + 1)} aria-label="one decision on">▸</button><button aria-pressed=${!moved} onClick=${() => setMoved(0)}>Now</button></div></div>
      <input type="range" min="1" max=${most} value=${now} aria-label="decision of both" onInput=${(/** @type {any} */ event) => move(Number(event.target.value))} /></div>
      <div class="cards">${experiments.map((e, i) => html`<${After} key=${e.id} e=${e} at=${Math.min(rested || most, counts[i])} count=${counts[i]} wanted=${rested || most} />`)}</div></section>`;
  }}</${Load}>`;
}

/** One of them. @param {{e: any, at: number, count: number, wanted: number}} props `wanted`: what the other one is at, maybe beyond its end */
function After({ e, at, count, wanted }) {
  const [every, setEvery] = useState(false);
  const view = useGet(count ? searchAt(e.id, at, 1, every) : null);
  const [last, setLast] = useState(/** @type {any} */ (undefined));
  useEffect(() => {
    if (view.data) setLast(view.data);
  }, [view.data]);
  if (!count) return html`<section class="card" aria-label="search of ${e.id}"><h3>${e.id} ${e.name}</h3><p class="muted">Nothing has been decided yet.</p></section>`;
  return html`<section class="card stack tight" aria-label="search of ${e.id}"><h3><a href="/det/experiments/${e.id}/search?at=${at}">${e.id} ${e.name}</a></h3>
    ${wanted > count && html`<p class="muted">It has ${count} decisions: this is the last one.</p>`}
    <${Load} of=${{ ...view, data: view.data ?? last }}>${(/** @type {any} */ s) => {
      const [decision] = s.decisions;
      return html`<div class="stack tight"><dl class="facts"><dt>Decision</dt><dd>${decision.number}, <time datetime=${decision.time}>${exact(decision.time)}</time></dd><dt>What happened</dt><dd>${decision.event}${decision.trialId ? html`, <a href="/det/trials/${decision.trialId}">trial ${decision.trialId}</a>` : ""}${decision.value === null ? "" : `, ${s.metric} ${metric(decision.value)}`}</dd>
        <dt>What was done</dt><dd>${decision.error || decision.actions || "nothing"}</dd></dl>
        <ul class="why">${[...decision.sentences, ...s.sentences].map((/** @type {string} */ text) => html`<li key=${text}>${text}</li>`)}</ul>
        ${s.rungs.length > 0 && html`<${Rungs} rungs=${s.rungs} metricName=${s.metric} name="rungs of ${e.id}" onEvery=${() => setEvery(true)} />`}</div>`;
    }}</${Load}></section>`;
}
