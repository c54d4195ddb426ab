// A project: its experiments and its runs as grids, its notes.
import { html, useEffect, useState } from "../html.js";
import { ahead, post, put } from "../api.js";
import { useGet } from "../data.js";
import { many, metric } from "../format.js";
import { MOST_COLUMNS, MOST_PINNED, NUMBERS, STATES, conditions, extraColumn, heatOf, listOf, readGroup, requestFilter, requestSort, textOf, toApi, told } from "../grid.js";
import { lazy } from "../lazy.js";
import { go, setQuery, useLocation, useQuery } from "../router.js";
import { Band, Choice, Confirm, Do, Empty, Head, Load, Pages, Search, Table, Tabs, attempt, toast } from "../ui.js";
import { may, mayChange } from "../session.js";
import { COLUMNS, COMMANDS, command } from "../experiments.js";

const [Filters, Columns, MoveMany, RetainMany] = ["Filters", "Columns", "MoveMany", "RetainMany"].map((name) => lazy(name, () => import("../griddialogs.js")));
const ForkAgain = lazy("ForkAgain", () => import("../experimentdialogs.js"));

/** `COUNTED`: behind a page the API counts no more rows than that. */
const [LIMIT, COUNTED] = [50, 1000];
const RunsGrid = lazy("RunsGrid", () => import("../rungrid.js"));

/** What a grid is of; `name`: the column of the search above it. @typedef {{kind: "experiments" | "runs", noun: string, path: string, table: string, name: string, columns: import("../ui.js").Column[], numbers: Record<string, (row: any) => any>, batch: any}} Kind */

/** @type {Kind} */
const EXPERIMENTS = { kind: "experiments", noun: "experiment", path: "undeterred/experiments-grid", table: "TABLE_TYPE_EXPERIMENT", name: "name", columns: COLUMNS, numbers: NUMBERS, batch: Batch };
export const RUNS = { path: "undeterred/runs-grid", name: "experimentName" };

/** What a project's page reads first. @param {{id: string, tab?: string}} params */
export function early({ id, tab = "experiments" }) {
  if (tab === "notes") ahead(`projects/${id}`);
  else {
    const kind = tab === "runs" ? RUNS : EXPERIMENTS;
    ahead(kind.path, searchOf(id, kind, new URLSearchParams(location.search)));
  }
}

/** The search that an address stands for. @param {string} project @param {{name: string}} kind @param {URLSearchParams} now */
function searchOf(project, kind, now) {
  const [name, state, label, archived] = ["name", "state", "label", "archived"].map((each) => now.get(each) ?? "");
  const filter = requestFilter([kind.name, name], { state, label, archived }, readGroup(now.get("filter") ?? "") ?? { and: [] });
  return { projectId: Number(project), limit: LIMIT, offset: Number(now.get("offset") ?? 0), sort: requestSort(now.get("sort") ?? "-id"), filter, columns: extraOf(now) };
}

/** Columns beside those of all grids. @param {URLSearchParams} now */
const extraOf = (now) => listOf(now.get("columns") ?? "", MOST_COLUMNS);

/** @param {{id: string, tab?: string}} props */
export function Project({ id, tab = "experiments" }) {
  const [isListed, setListed] = useState(false);
  const isSeen = isListed || tab === "notes";
  // The list does not wait for what stands above it: its counts go over all trials of the project.
  const project = useGet(isSeen ? `projects/${id}` : null, ["experiments"]);
  useEffect(() => {
    // For the list at home: a page that could not note it shows all the same.
    if (isSeen) post("users/activity", { activityType: "ACTIVITY_TYPE_GET", entityType: "ENTITY_TYPE_PROJECT", entityId: Number(id) }).catch(() => {});
  }, [id, isSeen]);
  return html`<div><${Load} of=${project} page>${(/** @type {any} */ { project: p }) => html`<div>
    <${Head} title=${p.name} crumbs=${[["Workspaces", "/det/workspaces"], [p.workspaceName, `/det/workspaces/${p.workspaceId}`]]} below=${p.description && html`<p class="muted">${p.description}</p>`}>
      ${may("CREATE_EXPERIMENT", p.workspaceId) && html`<a class="button" href="/det/launch?project=${p.id}">New experiment</a>`}</${Head}>
    <${Tabs} base="/det/projects/${id}" now=${tab} tabs=${[["experiments", "Experiments", p.numExperiments], ["runs", "Runs", p.numRuns], ["notes", "Notes", p.notes?.length || null]]} />
    ${tab === "notes" && html`<${Notes} project=${p} reload=${project.reload} />`}</div>`}</${Load}>
    ${tab !== "notes" && (project.data || !project.error) && html`<${tab === "runs" ? RunsGrid : Grid} key=${tab} project=${id} workspaceId=${project.data?.project.workspaceId} onListed=${() => setListed(true)} />`}</div>`;
}

/** `onListed`: its list has come, or was refused. @param {{kind?: Kind, project: string, workspaceId: number | undefined, onListed: () => void}} props */
export function Grid({ kind = EXPERIMENTS, project, workspaceId, onListed }) {
  const { query: now } = useLocation();
  const [name] = useQuery("name");
  const [state] = useQuery("state");
  const [archived] = useQuery("archived");
  const [label] = useQuery("label");
  const [filter] = useQuery("filter");
  const [dialog, setDialog] = useState("");
  const sort = now.get("sort") ?? "-id";
  const offset = Number(now.get("offset") ?? 0);
  const [chosen, setChosen] = useState(/** @type {Set<number>} */ (new Set()));
  const pinned = listOf(now.get("pin") ?? "", MOST_PINNED).map(Number).filter((id) => id > 0);
  const hidden = new Set(listOf(now.get("hide") ?? "", 100));
  const extra = extraOf(now);
  const heat = new Set(listOf(now.get("heat") ?? "", MOST_COLUMNS));
  const group = readGroup(filter);
  const list = useGet(kind.path, ["experiments"], JSON.stringify(searchOf(project, kind, now)));
  useEffect(() => {
    if (!list.isLoading) onListed();
  }, [list.isLoading]);
  const top = useGet(pinned.length ? kind.path : null, ["experiments"], JSON.stringify({ ...searchOf(project, kind, now), limit: MOST_PINNED, offset: 0, filter: JSON.stringify({ filterGroup: toApi({ or: pinned.map((id) => ["id", "=", id]) }) }) }));
  const isNarrowed = Boolean(name || state || label || filter);
  const clear = () => setQuery({ name: "", state: "", label: "", archived: "", filter: "", offset: "" });
  const close = () => setDialog("");
  return html`<div class="stack">
    <div class="row spread"><div class="row"><${Search} label="filter by name" value=${name} onChange=${(/** @type {string} */ text) => setQuery({ name: text, offset: "" })} />
      <${Choice} label="state" value=${state} onChange=${(/** @type {string} */ text) => setQuery({ state: text, offset: "" })} options=${[["", "any"], ...STATES.map((each) => [each, each.toLowerCase()])]} />
      <${Choice} label="archived" value=${archived} onChange=${(/** @type {string} */ text) => setQuery({ archived: text, offset: "" })} options=${[["", "without"], ["only", "only"], ["all", "with"]]} />
      ${label && html`<button class="small" onClick=${() => setQuery({ label: "" })}>label: ${label} ✕</button>`}</div>
      <div class="row"><button aria-pressed=${Boolean(filter)} onClick=${() => setDialog("filter")}>Filter</button><button onClick=${() => setDialog("columns")}>Columns</button></div></div>
    ${group === null ? html`<${Band} bad>The filter in the address can't be read, and is left out. <button class="small" onClick=${() => setQuery({ filter: "" })}>Remove it</button></${Band}>`
      : conditions(group) > 0 && html`<p class="row tight"><span class="muted">only where</span> <span class="tag wide">${told(group)}</span><button class="quiet small" aria-label="remove the filter" onClick=${() => setQuery({ filter: "", offset: "" })}>✕</button></p>`}
    ${dialog === "filter" && html`<${Filters} project=${project} kind=${kind} group=${group ?? { and: [] }} onClose=${close} onApply=${(/** @type {any} */ next) => { setQuery({ filter: conditions(next) ? JSON.stringify(next) : "", offset: "" }); close(); }} />`}
    ${dialog === "columns" && html`<${Columns} project=${project} kind=${kind} hidden=${hidden} extra=${extra} heat=${heat} onClose=${close}
      onChange=${(/** @type {Set<string>} */ hide, /** @type {string[]} */ columns, /** @type {Set<string>} */ hot) => setQuery({ hide: textOf(hide), columns: textOf(columns), heat: textOf(hot) })} />`}
    <${Load} of=${list}>${(/** @type {any} */ { [kind.kind]: listed, pagination }) => {
      const rows = [...(top.data?.[kind.kind] ?? []), ...listed.filter((/** @type {any} */ e) => !pinned.includes(e.id))];
      const again = () => { list.reload(); top.reload(); };
      return html`${chosen.size > 0 && html`<${kind.batch} project=${project} chosen=${rows.filter((/** @type {any} */ e) => chosen.has(e.id))} clear=${() => setChosen(new Set())} reload=${again} />`}
      <${Heated} kind=${kind} rows=${rows} pinned=${pinned} hidden=${hidden} extra=${extra} heat=${heat} sort=${sort} chosen=${chosen} setChosen=${setChosen} canLaunch=${kind === EXPERIMENTS && may("CREATE_EXPERIMENT", workspaceId)}
        empty=${workspaceId === undefined ? html`<div class="skeleton"></div>` : isNarrowed ? html`<${Empty} title="No ${kind.noun} matches"><button onClick=${clear}>Clear the filters</button></${Empty}>`
          : html`<${Empty} title="No ${kind.noun}s here yet"><code>det experiment create config.yaml . --project_id ${project}</code><a class="button" href="/det/launch?project=${project}">New experiment</a></${Empty}>`} />
      <${Pages} total=${pagination.total} offset=${offset} limit=${LIMIT} counted=${COUNTED} onOffset=${(/** @type {number} */ n) => setQuery({ offset: n ? String(n) : "" })} />`;
    }}</${Load}></div>`;
}

/** The table with its colours. @param {{kind: Kind, rows: any[], pinned: number[], hidden: Set<string>, extra: string[], heat: Set<string>, sort: string, chosen: Set<number>, setChosen: (chosen: Set<number>) => void, canLaunch: boolean, empty: any}} props */
function Heated({ kind, rows, pinned, hidden, extra, heat, sort, chosen, setChosen, canLaunch, empty }) {
  const [launch, setLaunch] = useState(/** @type {any} */ (null));
  const shown = [...kind.columns.filter((column) => !hidden.has(column.key)), ...extra.map(extraColumn)];
  /** @type {{title: string, low: number, high: number}[]} */
  const scales = [];
  const columns = shown.map((column) => {
    const value = kind.numbers[column.key] ?? /** @type {any} */ (column).value;
    if (!value || !heat.has(column.key)) return column;
    const scale = heatOf(rows, value);
    if (scale.low <= scale.high) scales.push({ title: column.title, ...scale });
    return { ...column, heat: scale.heat };
  });
  const pin = (/** @type {number} */ id) => setQuery({ pin: textOf(pinned.includes(id) ? pinned.filter((each) => each !== id) : [...pinned, id]) });
  const actions = { key: "do", title: "", cell: (/** @type {any} */ e) => {
    const isPinned = pinned.includes(e.id);
    return html`<div class="row tight nowrap"><button class="small quiet" title=${isPinned ? "Unpin" : "Pin: stays on top"} aria-label="pin ${e.id}" aria-pressed=${isPinned} disabled=${!isPinned && pinned.length >= MOST_PINNED} onClick=${() => pin(e.id)}><svg viewBox="0 0 12 12" width="12" height="12" aria-hidden="true"><path d="M3.5 1h5M4.5 1v4L2.5 7h7l-2-2V1M6 7v4.5" fill=${isPinned ? "currentColor" : "none"} stroke="currentColor" stroke-width="1.3" /></svg></button>
      ${canLaunch && html`<button class="small quiet" title="Launch again" aria-label="launch ${e.id} again" onClick=${() => setLaunch(e.id)}><svg viewBox="0 0 12 12" width="12" height="12" aria-hidden="true"><path d="M10 3.2A4.6 4.6 0 1 0 10.6 7M10.4 .8v2.7H7.7" fill="none" stroke="currentColor" stroke-width="1.4" /></svg></button>`}</div>`;
  } };
  return html`${scales.length > 0 && html`<p class="row muted">${scales.map((scale) => html`<span class="row tight" key=${scale.title}>${scale.title}: ${metric(scale.low)}<span class="ramp" aria-hidden="true"></span>${metric(scale.high)}</span>`)}</p>`}
    <${Table} rows=${rows} id=${(/** @type {any} */ e) => e.id} label="${kind.noun}s of the project" columns=${[actions, ...columns]} sort=${sort} sorts
      onSort=${(/** @type {string} */ text) => setQuery({ sort: text, offset: "" })} chosen=${chosen} onChoose=${setChosen} rowClass=${(/** @type {any} */ e) => (pinned.includes(e.id) ? "pinned" : "")} empty=${empty} />
    ${rows.length > 1 && html`<p class="muted">Click a title to sort; with Shift, sort by several.</p>`}
    ${launch && html`<${ForkAgain} id=${launch} onClose=${() => setLaunch(null)} />`}`;
}

/** @param {{project: string, chosen: any[], clear: () => void, reload: () => void}} props */
function Batch({ project, chosen, clear, reload }) {
  const [dialog, setDialog] = useState("");
  const run = (/** @type {string} */ name, /** @type {any[]} */ which) => async () => {
    const results = await Promise.allSettled(which.map((e) => command(e.id, name)));
    const failed = results.filter((result) => result.status === "rejected");
    toast(failed.length ? `${failed.length} of ${which.length}: ${/** @type {any} */ (failed[0]).reason.message}` : `${name}: done for ${many(which.length, "experiment")}`, failed.length > 0);
    clear();
    reload();
  };
  const own = chosen.filter(mayChange);
  const ids = (/** @type {any[]} */ which) => which.map((e) => e.id).join(", ");
  const numbers = own.map((e) => e.id);
  return html`<div class="row card" role="group" aria-label="what to do with the chosen experiments"><strong>${many(chosen.length, "experiment")} chosen</strong>
    ${chosen.length > 1 && html`<a class="button" href="/det/compare?experiments=${ids(chosen).replaceAll(" ", "")}">Compare</a>`}
    ${COMMANDS.map(([name, text, fits]) => {
      const which = own.filter(fits);
      if (!which.length) return null;
      if (name === "kill" || name === "cancel")
        return html`<${Confirm} key=${name} label="${text} ${which.length}" title="${text} ${many(which.length, "experiment")}?" confirm=${text} run=${run(name, which)}><p>Experiments ${ids(which)} end; their trials keep the checkpoints that they have.</p></${Confirm}>`;
      return html`<${Do} key=${name} run=${run(name, which)}>${text} ${which.length}</${Do}>`;
    })}
    ${own.length > 0 && html`<button onClick=${() => setDialog("move")}>Move ${own.length}</button><button onClick=${() => setDialog("retain")}>Log retention</button>
      <${Confirm} label="Delete ${own.length}" title="Delete ${many(own.length, "experiment")}?" confirm="Delete" run=${run("delete", own)}><p>Experiments ${ids(own)} go, with all their trials, metrics, logs and checkpoints. This can't be undone.</p></${Confirm}>`}
    ${may("CREATE_NSC", chosen[0]?.workspaceId) && html`<${Do} run=${async () => { const { tensorboard } = await post("tensorboards", { experimentIds: chosen.map((e) => e.id) }); go(`/det/interactive/${tensorboard.id}/tensorboard`); }}>TensorBoard</${Do}>`}
    <button class="quiet" onClick=${clear}>Clear</button>
    ${dialog === "move" && html`<${MoveMany} project=${project} ids=${numbers} onClose=${() => setDialog("")} reload=${() => { clear(); reload(); }} />`}${dialog === "retain" && html`<${RetainMany} project=${project} ids=${numbers} onClose=${() => setDialog("")} />`}</div>`;
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
