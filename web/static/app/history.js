// The history of an experiment: who changed it, when and how; its beginning, its end, and failures of its runs.
import { html, useState } from "./html.js";
import { get, query } from "./api.js";
import { useGet } from "./data.js";
import { clock, many } from "./format.js";
import { useQuery } from "./router.js";
import { saveText, csvOf } from "./save.js";
import { isAdmin } from "./session.js";
import { Choice, Do, Empty, Load } from "./ui.js";

const LIMIT = 100;
/** A colour and a shape for each kind. @type {Record<string, [string, any]>} */
const MARKS = {
  request: ["var(--accent)", html`<circle cx="7" cy="7" r="4.5" fill="currentColor" />`],
  state: ["var(--run)", html`<path d="M7 1.5 12.5 7 7 12.5 1.5 7z" fill="currentColor" />`],
  run: ["var(--wait)", html`<path d="M2.5 2.5h9v9h-9z" fill="none" stroke="currentColor" stroke-width="2" />`],
  bad: ["var(--bad)", html`<path d="M2.5 2.5l9 9M11.5 2.5l-9 9" stroke="currentColor" stroke-width="2.4" />`],
};
const DAY = new Intl.DateTimeFormat(undefined, { weekday: "short", year: "numeric", month: "short", day: "numeric" });

/** Events by the reader's day, in their order. @param {any[]} events @returns {[string, any[]][]} */
export function byDay(events) {
  /** @type {[string, any[]][]} */
  const days = [];
  for (const event of events) {
    const day = DAY.format(new Date(event.at));
    if (days[days.length - 1]?.[0] !== day) days.push([day, []]);
    days[days.length - 1][1].push(event);
  }
  return days;
}

/** @param {{e: any}} props */
export function History({ e }) {
  const [kind, setKind] = useQuery("kind");
  const path = `undeterred/experiments/${e.id}/history${query({ limit: LIMIT, kinds: kind })}`;
  const list = useGet(path, [`experiment:${e.id}`]);
  const [more, setMore] = useState(/** @type {{path: string, events: any[], next: string}} */ ({ path: "", events: [], next: "" }));
  const older = more.path === path ? more : null;
  return html`<section class="stack tight" aria-label="history"><h2 class="visually-hidden">History</h2><${Load} of=${list} height=${240}>${(/** @type {any} */ data) => {
    // What came meanwhile may have moved events from the first page to those that were read as older ones.
    const oldest = data.events[data.events.length - 1]?.at ?? "";
    const events = [...data.events, ...(older?.events ?? []).filter((/** @type {any} */ event) => !oldest || event.at < oldest)];
    const next = older ? older.next : data.next;
    const read = async () => {
      const found = await get(`${path}&before=${encodeURIComponent(next)}`);
      setMore({ path, events: [...(older?.events ?? []), ...found.events], next: found.next });
    };
    return html`<div class="row spread"><${Choice} label="show" value=${kind} onChange=${setKind} options=${[["", "everything"], ["request", "what people did"], ["state", "beginning and end"], ["run", "runs that failed"]]} />
        <div class="row tight"><span class="muted">${many(events.length, "event")}${next ? " so far" : ""}</span><button class="quiet small" disabled=${!events.length} aria-label="save the history as CSV" onClick=${() => save(e, events)}>CSV</button></div></div>
      ${events.length ? byDay(events).map(([day, each]) => html`<section class="card" key=${day}><h3>${day}</h3><ol class="history">${each.map((/** @type {any} */ event, /** @type {number} */ i) => html`<${Event} key="${event.at} ${i}" event=${event} />`)}</ol></section>`)
        : html`<${Empty} title="Nothing of that kind has happened"></${Empty}>`}
      ${next && html`<div class="row"><${Do} run=${read}>Older</${Do}></div>`}`;
  }}</${Load}></section>`;
}

/** @param {{event: any}} props */
function Event({ event }) {
  const [colour, shape] = MARKS[event.isBad ? "bad" : event.kind] ?? MARKS.request;
  return html`<li><time datetime=${event.at}>${clock(event.at)}</time><svg viewBox="0 0 14 14" width="14" height="14" aria-hidden="true" style=${{ color: colour }}>${shape}</svg>
    <div>${event.actor && html`<strong>${event.actor}</strong> `}${event.trialId ? html`<a href="/det/trials/${event.trialId}">${event.text}</a>` : event.actor ? event.text : `The experiment ${event.text}`}${event.experimentId && html`: <a href="/det/experiments/${event.experimentId}">experiment ${event.experimentId}</a>`}
      ${event.fields.map((/** @type {string} */ field) => html` <code class="tag" key=${field}>${field}</code>`)}
      ${isAdmin() && event.address && html`<span class="muted"> from ${event.address}${event.tokenId ? `, token ${event.tokenId}` : ""}</span>`}</div></li>`;
}

/** @param {any} e @param {any[]} events */
function save(e, events) {
  const columns = ["at", "kind", "actor", "text", "experimentId", "trialId"].map((name) => events.map((event) => event[name]));
  saveText(csvOf(["at", "kind", "actor", "what", "experiment", "trial", "fields"], [...columns, events.map((event) => event.fields.join(" "))]), `experiment-${e.id}-history.csv`, "text/csv");
}
