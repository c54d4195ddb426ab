// The cluster: pools, agents and their slots, who used how much, the log of the control plane.
import { html, useEffect, useState } from "../html.js";
import { lines, post, query } from "../api.js";
import { useGet } from "../data.js";
import { clock, exact, many } from "../format.js";
import { isAdmin } from "../session.js";
import { useQuery } from "../router.js";
import { Choice, Confirm, Do, Empty, Head, Load, Table, Tabs, When } from "../ui.js";
import { csvOf, saveText } from "../save.js";
import { lazy } from "../lazy.js";
import { SlotsOverTime } from "../slots.js";

const [JoinTokens, RemoveAgent, Slots] = ["JoinTokens", "RemoveAgent", "Slots"].map((name) => lazy(name, () => import("../agents.js")));

/** @param {{tab?: string}} props */
export function Cluster({ tab = location.pathname.endsWith("/logs") ? "logs" : "overview" }) {
  return html`<div><${Head} title="Cluster" /><${Tabs} base="/det/cluster" now=${tab} tabs=${[["overview", "Agents"], ["slots", "Slots over time"], ["historical-usage", "Usage"], ...(isAdmin() ? [["logs", "Log"]] : [])]} />
    ${tab === "slots" ? html`<${SlotsOverTime} />` : tab === "historical-usage" ? html`<${Usage} />` : tab === "logs" ? html`<${MasterLog} />` : html`<${Overview} />`}</div>`;
}

function Overview() {
  const agents = useGet("agents", ["agents"]);
  const pools = useGet("resource-pools", ["agents", "jobs"]);
  return html`<div class="stack"><${Load} of=${pools}>${(/** @type {any} */ { resourcePools }) => html`<div class="cards">${resourcePools.map((/** @type {any} */ p) => html`<a class="card" key=${p.name} href="/det/resourcepool/${encodeURIComponent(p.name)}"><h2>${p.name}</h2>
      <div class="bar" role="img" aria-label="${p.slotsUsed} of ${p.slotsAvailable} slots in use"><div style=${{ width: `${p.slotsAvailable ? (100 * p.slotsUsed) / p.slotsAvailable : 0}%` }}></div></div><p>${p.slotsUsed} of ${many(p.slotsAvailable, "slot")} in use, ${p.stats?.queuedCount ?? 0} waiting, ${p.stats?.scheduledCount ?? 0} running</p></a>`)}</div>`}</${Load}>
    <${Load} of=${agents}>${(/** @type {any} */ data) => html`<${Table} label="agents" rows=${data.agents} id=${(/** @type {any} */ a) => a.id} columns=${[
      { key: "id", title: "Agent", cell: (/** @type {any} */ a) => a.id }, { key: "pool", title: "Pool", cell: (/** @type {any} */ a) => a.resourcePools.join(", ") },
      { key: "is", title: "Takes work", cell: (/** @type {any} */ a) => (a.draining ? "draining" : a.enabled ? "yes" : "no") },
      { key: "slots", title: "Slots", wrap: true, cell: (/** @type {any} */ a) => html`<span class="row tight">${Object.values(a.slots).sort((/** @type {any} */ x, /** @type {any} */ y) => Number(x.id) - Number(y.id)).map((/** @type {any} */ slot) => html`<span key=${slot.id} class="slot ${!slot.enabled ? "off" : slot.container ? "used" : ""}" role="img" title="slot ${slot.id}, ${slot.device?.brand || slot.device?.type?.replace("TYPE_", "")}: ${!slot.enabled ? "disabled" : slot.container ? `in use by ${slot.container.parent}` : "free"}" aria-label="slot ${slot.id} ${!slot.enabled ? "disabled" : slot.container ? "in use" : "free"}"></span>`)}</span>` },
      { key: "containers", title: "Containers", num: true, cell: (/** @type {any} */ a) => Object.keys(a.containers ?? {}).length },
      { key: "since", title: "Since", cell: (/** @type {any} */ a) => html`<${When} at=${a.registeredTime} />` }, { key: "version", title: "Version", cell: (/** @type {any} */ a) => a.version },
      ...(isAdmin() ? [{ key: "do", title: "", cell: (/** @type {any} */ a) => (a.enabled && !a.draining ? html`<div class="row tight"><${Do} kind="small" title="no new work; what runs goes on" run=${() => post(`agents/${a.id}/disable`, { agentId: a.id, drain: true }).then(agents.reload)}>Drain</${Do}>
        <${Confirm} kind="small danger" label="Disable" title="Disable ${a.id}?" confirm="Disable" run=${() => post(`agents/${a.id}/disable`).then(agents.reload)}><p>Its ${many(Object.keys(a.containers ?? {}).length, "container")} leave it, trials after a checkpoint, and go on elsewhere.</p></${Confirm}><${Slots} agent=${a} reload=${agents.reload} /></div>` : html`<div class="row tight"><${Do} kind="small" run=${() => post(`agents/${a.id}/enable`).then(agents.reload)}>Enable</${Do}><${RemoveAgent} agent=${a} reload=${agents.reload} /></div>`) }] : []),
    ]} empty=${html`<${Empty} title="No agent is connected"><p>On a host: <code>det agent run</code></p></${Empty}>`} />`}</${Load}>${isAdmin() && html`<${JoinTokens} />`}</div>`;
}

function Usage() {
  const [days, setDays] = useQuery("days", "30");
  const day = (/** @type {number} */ back) => new Date(Date.now() - back * 86_400_000).toISOString().slice(0, 10);
  const list = useGet(`resources/allocation/aggregated${query({ startDate: day(Number(days) || 30), endDate: day(0), period: "RESOURCE_ALLOCATION_AGGREGATION_PERIOD_DAILY" })}`);
  return html`<${Load} of=${list}>${(/** @type {any} */ { resourceEntries }) => {
    const most = Math.max(1, ...resourceEntries.map((/** @type {any} */ entry) => entry.seconds));
    const hours = (/** @type {any} */ seconds) => (Number(seconds) / 3600).toFixed(1);
    const top = (/** @type {any} */ by) => Object.entries(by ?? {}).filter(([name]) => name !== "total").sort((/** @type {any} */ a, /** @type {any} */ b) => b[1] - a[1]).slice(0, 4).map(([name, seconds]) => `${name} ${hours(seconds)}`).join(", ");
    return html`<div class="stack"><div class="row spread"><${Choice} label="last" value=${days} onChange=${setDays} options=${[["7", "7 days"], ["30", "30 days"], ["90", "90 days"], ["365", "a year"]]} />
      <button onClick=${() => saveText(csvOf(["day", "slot-hours"], [resourceEntries.map((/** @type {any} */ entry) => entry.periodStart), resourceEntries.map((/** @type {any} */ entry) => hours(entry.seconds))]), "usage.csv", "text/csv")}>CSV</button></div>
      <${Table} label="slot-hours by day" rows=${[...resourceEntries].reverse()} id=${(/** @type {any} */ entry) => entry.periodStart} columns=${[
        { key: "day", title: "Day", cell: (/** @type {any} */ entry) => entry.periodStart }, { key: "hours", title: "Slot-hours", num: true, cell: (/** @type {any} */ entry) => hours(entry.seconds) },
        { key: "bar", title: "", cell: (/** @type {any} */ entry) => html`<div class="bar" style=${{ width: "240px" }}><div style=${{ width: `${(100 * entry.seconds) / most}%` }}></div></div>` },
        { key: "users", title: "By user, h", cell: (/** @type {any} */ entry) => top(entry.byUsername) }, { key: "pools", title: "By pool, h", cell: (/** @type {any} */ entry) => top(entry.byResourcePool) }]}
        empty=${html`<${Empty} title="Nothing has run in these days"></${Empty}>`} /></div>`;
  }}</${Load}>`;
}

function MasterLog() {
  const [state, setState] = useState(/** @type {any} */ ({ error: null }));
  const load = () => lines("master/logs?offset=-500&limit=500").then((found) => setState({ data: found.map((each) => each.result.logEntry), error: null }), (error) => setState({ error }));
  useEffect(() => void load(), []);
  return html`<div class="stack"><div class="row"><button onClick=${load}>Read again</button></div><${Load} of=${{ ...state, reload: load }}>${(/** @type {any[]} */ found) => html`<div class="log" tabindex="0" role="log" aria-label="log of the control plane">${found.map((line) => html`<div class="line ${line.level?.replace("LOG_LEVEL_", "")}" key=${line.id}><time datetime=${line.timestamp} title=${exact(line.timestamp)}>${clock(line.timestamp)}</time><span>${line.message}</span></div>`)}</div>`}</${Load}></div>`;
}
