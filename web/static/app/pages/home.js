// Home: what runs, what was last, and what to do next.
import { html } from "../html.js";
import { query } from "../api.js";
import { useGet } from "../data.js";
import { many, stateOf } from "../format.js";
import { session } from "../session.js";
import { Empty, Head, Load } from "../ui.js";
import { ExperimentTable } from "../experiments.js";
import { LaunchButtons, TaskTable, useTasks } from "../tasklist.js";

export function Home() {
  const user = session()?.user;
  const own = useGet(`experiments${query({ userIds: user.id, limit: 8, orderBy: "ORDER_BY_DESC", sortBy: "SORT_BY_START_TIME", showTrialData: true })}`, ["experiments"]);
  const tasks = useTasks({ userIds: user.id });
  const visited = useGet("user/projects/activity?limit=6");
  const pools = useGet("resource-pools", ["agents", "jobs"]);
  const running = tasks.rows.filter((task) => !["COMPLETED", "CANCELED", "ERROR", "TERMINATED"].includes(stateOf(task.state)));
  return html`<div class="stack"><${Head} title="Home"><${LaunchButtons} /><a class="button" href="/det/launch">New experiment</a></${Head}>
    <section class="stack tight"><h2>Your latest experiments</h2><${Load} of=${own}>${(/** @type {any} */ data) => html`<${ExperimentTable} rows=${data.experiments} label="your latest experiments"
      empty=${html`<${Empty} title="No experiments yet"><p>Start one from a folder with a configuration and code:</p><code>det experiment create config.yaml .</code><p>or <a href="/det/launch">write a configuration here</a>.</p></${Empty}>`} />`}</${Load}></section>
    <section class="stack tight"><h2>Your tasks</h2>${tasks.isLoading ? html`<div class="skeleton" style=${{ height: "60px" }}></div>` : html`<${TaskTable} rows=${running} reload=${tasks.reload}
      empty=${html`<${Empty} title="No notebook or shell is open"><p>Start one with the buttons above, or with <code>det notebook start</code>.</p></${Empty}>`} />`}</section>
    <section class="stack tight"><h2>Projects that you looked at</h2><${Load} of=${visited}>${(/** @type {any} */ data) => (data.projects.length ? html`<div class="cards">${data.projects.map(
      (/** @type {any} */ project) => html`<a class="card" key=${project.id} href="/det/projects/${project.id}"><h3>${project.name}</h3><p>in ${project.workspaceName}, ${many(project.numExperiments, "experiment")}</p></a>`)}</div>` : html`<p class="muted">None yet: they are in <a href="/det/workspaces">workspaces</a>.</p>`)}</${Load}></section>
    <section class="stack tight"><h2>Pools</h2><${Load} of=${pools}>${(/** @type {any} */ data) => html`<div class="cards">${data.resourcePools.map(
      (/** @type {any} */ pool) => html`<a class="card" key=${pool.name} href="/det/resourcepool/${encodeURIComponent(pool.name)}"><h3>${pool.name}</h3>
        <p>${pool.slotsUsed} of ${many(pool.slotsAvailable, "slot")} in use, ${pool.stats?.queuedCount ?? 0} waiting, ${many(pool.numAgents, "agent")}</p></a>`)}</div>`}</${Load}></section></div>`;
}
