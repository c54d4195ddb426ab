// A project: its experiments as a grid, its notes.
import { html, useState } from "../html.js";
import { put, query } from "../api.js";
import { useGet } from "../data.js";
import { many } from "../format.js";
import { setQuery, useLocation, useQuery } from "../router.js";
import { Choice, Confirm, Do, Empty, Head, Load, Pages, Search, Tabs, attempt, toast } from "../ui.js";
import { may, mayChange } from "../session.js";
import { COLUMNS, COMMANDS, ExperimentTable, command } from "../experiments.js";

const LIMIT = 50;
const STATES = ["ACTIVE", "PAUSED", "COMPLETED", "CANCELED", "ERROR"];

/** @param {{id: string, tab?: string}} props */
export function Project({ id, tab = "experiments" }) {
  const project = useGet(`projects/${id}`, ["experiments"]);
  return html`<${Load} of=${project} page>${(/** @type {any} */ { project: p }) => html`<div>
    <${Head} title=${p.name} crumbs=${[["Workspaces", "/det/workspaces"], [p.workspaceName, `/det/workspaces/${p.workspaceId}`]]} below=${p.description && html`<p class="muted">${p.description}</p>`}>
      ${may("CREATE_EXPERIMENT", p.workspaceId) && html`<a class="button" href="/det/launch?project=${p.id}">New experiment</a>`}</${Head}>
    <${Tabs} base="/det/projects/${id}" now=${tab} tabs=${[["experiments", "Experiments", p.numExperiments], ["notes", "Notes", p.notes?.length || null]]} />
    ${tab === "notes" ? html`<${Notes} project=${p} reload=${project.reload} />` : html`<${Grid} project=${id} />`}</div>`}</${Load}>`;
}

/** @param {{project: string}} props */
export function Grid({ project }) {
  const { query: now } = useLocation();
  const [name, setName] = useQuery("name");
  const [state, setState] = useQuery("state");
  const [archived] = useQuery("archived");
  const [label] = useQuery("label");
  const [hidden, setHidden] = useQuery("hide");
  const sort = now.get("sort") ?? "-SORT_BY_ID";
  const offset = Number(now.get("offset") ?? 0);
  const [chosen, setChosen] = useState(/** @type {Set<number>} */ (new Set()));
  const list = useGet(
    `experiments${query({
      projectId: project, limit: LIMIT, offset, name, labels: label || undefined, showTrialData: true,
      states: state && `STATE_${state}`, archived: archived === "all" ? "" : archived === "only",
      sortBy: sort.replace("-", ""), orderBy: sort.startsWith("-") ? "ORDER_BY_DESC" : "ORDER_BY_ASC",
    })}`,
    ["experiments"],
  );
  const hide = new Set(hidden.split(",").filter(Boolean));
  return html`<div class="stack">
    <div class="row spread"><div class="row"><${Search} label="filter by name" value=${name} onChange=${(/** @type {string} */ text) => setQuery({ name: text, offset: "" })} />
      <${Choice} label="state" value=${state} onChange=${(/** @type {string} */ text) => setQuery({ state: text, offset: "" })} options=${[["", "any"], ...STATES.map((each) => [each, each.toLowerCase()])]} />
      <${Choice} label="archived" value=${archived} onChange=${(/** @type {string} */ text) => setQuery({ archived: text, offset: "" })} options=${[["", "without"], ["only", "only"], ["all", "with"]]} />
      ${label && html`<button class="small" onClick=${() => setQuery({ label: "" })}>label: ${label} ✕</button>`}</div>
      <details class="menu"><summary class="button">Columns</summary><div>${COLUMNS.filter((c) => c.key !== "id").map((c) => html`<label class="row tight" key=${c.key}><input type="checkbox" checked=${!hide.has(c.key)} onChange=${() => {
        if (!hide.delete(c.key)) hide.add(c.key);
        setHidden([...hide].join(","));
      }} />${c.title}</label>`)}</div></details></div>
    <${Load} of=${list}>${(/** @type {any} */ { experiments, pagination }) => html`
      ${chosen.size > 0 && html`<${Batch} chosen=${experiments.filter((/** @type {any} */ e) => chosen.has(e.id))} clear=${() => setChosen(new Set())} reload=${list.reload} />`}
      <${ExperimentTable} rows=${experiments} label="experiments of the project" columns=${COLUMNS.map((c) => c.key).filter((key) => !hide.has(key))} sort=${sort}
        onSort=${(/** @type {string} */ text) => setQuery({ sort: text, offset: "" })} chosen=${chosen} onChoose=${setChosen}
        empty=${name || state || label ? html`<${Empty} title="No experiment matches"><button onClick=${() => setQuery({ name: "", state: "", label: "", archived: "", offset: "" })}>Clear the filters</button></${Empty}>`
          : html`<${Empty} title="No experiments here yet"><code>det experiment create config.yaml . --project_id ${project}</code><a class="button" href="/det/launch?project=${project}">New experiment</a></${Empty}>`} />
      <${Pages} total=${pagination.total} offset=${offset} limit=${LIMIT} onOffset=${(/** @type {number} */ n) => setQuery({ offset: n ? String(n) : "" })} />`}</${Load}></div>`;
}

/** @param {{chosen: any[], clear: () => void, reload: () => void}} props */
function Batch({ chosen, clear, reload }) {
  const run = (/** @type {string} */ name, /** @type {any[]} */ which) => async () => {
    const results = await Promise.allSettled(which.map((e) => command(e.id, name)));
    const failed = results.filter((result) => result.status === "rejected");
    toast(failed.length ? `${failed.length} of ${which.length}: ${/** @type {any} */ (failed[0]).reason.message}` : `${name}: done for ${many(which.length, "experiment")}`, failed.length > 0);
    clear();
    reload();
  };
  const own = chosen.filter(mayChange);
  const ids = (/** @type {any[]} */ which) => which.map((e) => e.id).join(", ");
  return html`<div class="row card" role="group" aria-label="what to do with the chosen experiments"><strong>${many(chosen.length, "experiment")} chosen</strong>
    ${chosen.length > 1 && html`<a class="button" href="/det/compare?experiments=${ids(chosen).replaceAll(" ", "")}">Compare</a>`}
    ${COMMANDS.map(([name, text, fits]) => {
      const which = own.filter(fits);
      if (!which.length) return null;
      if (name === "kill" || name === "cancel")
        return html`<${Confirm} key=${name} label="${text} ${which.length}" title="${text} ${many(which.length, "experiment")}?" confirm=${text} run=${run(name, which)}><p>Experiments ${ids(which)} end; their trials keep the checkpoints that they have.</p></${Confirm}>`;
      return html`<${Do} key=${name} run=${run(name, which)}>${text} ${which.length}</${Do}>`;
    })}
    ${own.length > 0 && html`<${Confirm} label="Delete ${own.length}" title="Delete ${many(own.length, "experiment")}?" confirm="Delete" run=${run("delete", own)}><p>Experiments ${ids(own)} go, with all their trials, metrics, logs and checkpoints. This can't be undone.</p></${Confirm}>`}
    <button class="quiet" onClick=${clear}>Clear</button></div>`;
}

/** @param {{project: any, reload: () => void}} props */
function Notes({ project, reload }) {
  const [notes, setNotes] = useState(/** @type {any[]} */ (project.notes?.length ? project.notes : [{ name: "Notes", contents: "" }]));
  const change = (/** @type {number} */ i, /** @type {any} */ part) => setNotes(notes.map((note, k) => (k === i ? { ...note, ...part } : note)));
  return html`<div class="stack">${notes.map((note, i) => html`<div class="card stack tight" key=${i}>
      <label class="field">Title<input value=${note.name} onInput=${(/** @type {any} */ e) => change(i, { name: e.target.value })} /></label>
      <label class="field">Text<textarea rows="10" value=${note.contents} onInput=${(/** @type {any} */ e) => change(i, { contents: e.target.value })}></textarea></label></div>`)}
    <div class="row"><button onClick=${() => setNotes([...notes, { name: "Notes", contents: "" }])}>Add a page</button>
      <button class="first" onClick=${() => attempt(async () => { await put(`projects/${project.id}/notes`, { notes }); reload(); }, "Notes saved")}>Save</button></div></div>`;
}
