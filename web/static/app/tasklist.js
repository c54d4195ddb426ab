// Notebooks, shells, commands, TensorBoards and generic tasks: in lists, and how they are started.
import { html, useMemo, useState } from "./html.js";
import { patch, post, query } from "./api.js";
import { useGet } from "./data.js";
import { lasted, stateOf } from "./format.js";
import { Form, FormButton } from "./form.js";
import { go, useQuery } from "./router.js";
import { may, session } from "./session.js";
import { Choice, Confirm, Do, Empty, Failed, State, Table, When } from "./ui.js";

/** @type {[string, string, string][]} key of the lists, name, path */
export const KINDS = [
  ["notebooks", "JupyterLab", "notebooks"], ["shells", "Shell", "shells"], ["commands", "Command", "commands"],
  ["tensorboards", "TensorBoard", "tensorboards"],
];

/** All tasks that fit. @param {{userIds?: number, workspaceId?: number}} filter */
export function useTasks(filter) {
  const lists = KINDS.map(([, , path]) => useGet(`${path}${query({ limit: 500, ...filter })}`, ["tasks"]));
  const generic = useGet(`generic-tasks${query({ limit: 500, ...filter })}`, ["tasks"]);
  const rows = useMemo(() => {
    const found = KINDS.flatMap(([key, kind], i) => (lists[i].data?.[key] ?? []).map((/** @type {any} */ task) => ({ ...task, kind, path: key })));
    const others = (generic.data?.tasks ?? []).map((/** @type {any} */ task) => ({ ...task, id: task.taskId, kind: "Generic", path: "tasks", description: task.name }));
    return [...found, ...others].sort((a, b) => (a.startTime < b.startTime ? 1 : -1));
  }, [...lists.map((list) => list.data), generic.data]);
  const all = [...lists, generic];
  return { rows, isLoading: all.some((list) => list.isLoading), error: all.find((list) => list.error)?.error, reload: () => all.forEach((list) => list.reload()) };
}

/** @param {any} task */
export const hasEnded = (task) => ["TERMINATED", "COMPLETED", "CANCELED", "ERROR"].includes(stateOf(task.state)) || Boolean(task.endTime);

/** @param {{rows: any[], reload: () => void, empty?: any}} props */
export function TaskTable({ rows, reload, empty }) {
  return html`<${Table} label="tasks" rows=${rows} id=${(/** @type {any} */ t) => t.id} empty=${empty} columns=${[
    { key: "name", title: "Name", cell: (/** @type {any} */ t) => html`<a href="/det/tasks/${t.id}">${t.description || t.id}</a>` },
    { key: "kind", title: "Kind", cell: (/** @type {any} */ t) => t.kind },
    { key: "state", title: "State", cell: (/** @type {any} */ t) => html`<${State} state=${t.state} />` },
    { key: "user", title: "User", cell: (/** @type {any} */ t) => t.displayName || t.username },
    { key: "pool", title: "Pool", cell: (/** @type {any} */ t) => t.resourcePool },
    { key: "start", title: "Started", cell: (/** @type {any} */ t) => html`<${When} at=${t.startTime} />` },
    { key: "age", title: "Age", num: true, cell: (/** @type {any} */ t) => lasted(t.startTime, t.endTime) },
    { key: "do", title: "", cell: (/** @type {any} */ t) => html`<${TaskActions} task=${t} reload=${reload} small />` },
  ]} />`;
}

/** @param {{task: any, reload: () => void, small?: boolean}} props */
export function TaskActions({ task, reload, small }) {
  const canChange = task.userId === session()?.user.id || may("UPDATE_NSC", task.workspaceId);
  const kind = small ? "small" : "";
  const canOpen = ["notebooks", "tensorboards", "shells"].includes(task.path);
  const again = task.path === "tasks" && may("CREATE_NSC", task.workspaceId) && html`<${Confirm} kind=${kind} label="Run again" title="Run ${task.description || task.id} again?" confirm="Run again" run=${async () => { const { taskId } = await post("generic-tasks", { config: "", forkedFrom: task.id }); go(`/det/tasks/${taskId}`); }}><p>A new task with the same configuration and files starts. This one stays as it is.</p></${Confirm}>`;
  if (hasEnded(task)) return html`<div class="row tight"><a class="button ${kind}" href="/det/tasks/${task.id}/logs">Logs</a>${again}</div>`;
  return html`<div class="row tight">${canOpen && html`<a class="button ${kind}" href="/det/interactive/${task.id}/${task.path}">Open</a>`}
    <a class="button ${kind}" href="/det/tasks/${task.id}/logs">Logs</a>
    ${canChange && task.path === "tasks" && !task.noPause && html`<${Do} kind=${kind} run=${async () => { await post(`tasks/${task.id}/${stateOf(task.state) === "PAUSED" ? "unpause" : "pause"}`, { taskId: task.id }); reload(); }}>${stateOf(task.state) === "PAUSED" ? "Unpause" : "Pause"}</${Do}>`}
    ${again}${canChange && html`<${Limits} task=${task} kind=${kind} reload=${reload} />`}
    ${canChange && html`<${Confirm} kind="${kind} danger" label="Kill" title="Kill ${task.description || task.id}?" confirm="Kill" run=${async () => { await post(`${task.path}/${task.id}/kill`, task.path === "tasks" ? { taskId: task.id } : {}); reload(); }}>
      <p>This ${task.kind} of ${task.displayName || task.username} ends at once${task.path === "tasks" ? ", and the tasks below it" : ""}. Files that are not on a mounted folder are lost.</p></${Confirm}>`}</div>`;
}

/** Tasks that fit, open or all, with choices beside that one. @param {{filter: {userIds?: number, workspaceId?: number}, kind?: string, children?: any}} props */
export function TaskList({ filter, kind = "", children }) {
  const [state, setState] = useQuery("state", "open");
  const tasks = useTasks(filter);
  const rows = tasks.rows.filter((task) => (!kind || task.kind === kind) && (state !== "open" || !hasEnded(task)));
  return html`<div class="row">${children}<${Choice} label="state" value=${state} onChange=${setState} options=${[["open", "open"], ["all", "ended too"]]} /></div>
    ${tasks.error && !tasks.rows.length ? html`<${Failed} error=${tasks.error} again=${tasks.reload} />` : tasks.isLoading ? html`<div class="skeleton" style=${{ height: "120px" }}></div>` : html`<${TaskTable} rows=${rows} reload=${tasks.reload}
      empty=${html`<${Empty} title="No task here"><p>Start one with ${filter.workspaceId ? "" : "the buttons above, or with "}<code>det notebook start</code>, <code>det shell start</code>, <code>det command run</code>.</p></${Empty}>`} />`}`;
}

/** Start something that is used in the browser. */
export function LaunchButtons() {
  const [open, setOpen] = useState("");
  return html`<button onClick=${() => setOpen("notebooks")}>JupyterLab</button><button onClick=${() => setOpen("shells")}>Shell</button><button onClick=${() => setOpen("commands")}>Command</button>
    ${open && html`<${Launch} path=${open} onClose=${() => setOpen("")} />`}<${NewGeneric} />`;
}

/** After how long a task ends by itself, and its place in the queue. @param {{task: any, kind: string, reload: () => void}} props */
function Limits({ task, kind, reload }) {
  const run = async (/** @type {any} */ { priority, ...limits }) => {
    if (Object.keys(limits).length) await patch(`undeterred/tasks/${task.id}/limits`, limits);
    if (priority) await post(`${task.path}/${task.id}/set_priority`, { priority });
    reload();
  };
  return html`<${FormButton} label="Limits" kind=${kind} title="Limits of ${task.description || task.id}" run=${run} fields=${[
    { key: "maxLifetime", label: "Ends after so long on its slots; 0s: never", placeholder: "as it is, or 8h" },
    ...(["notebooks", "tensorboards"].includes(task.path) ? [{ key: "idleTimeout", label: "Ends unused after; 0s: never", placeholder: "as it is, or 30m" }] : []),
    ...(task.path === "tasks" ? [] : [{ key: "priority", label: "Priority (1 goes first)", type: "number", min: 1, max: 99, placeholder: "as it is" }])]} />`;
}

/** A program of the user's own. */
function NewGeneric() {
  const run = async (/** @type {any} */ { config, after, noPause }) => {
    const { taskId } = await post("generic-tasks", { config, noPause, after: after.length ? after : undefined });
    go(`/det/tasks/${taskId}`);
  };
  return html`<${FormButton} label="Task" title="Run a program as a task" confirm="Start" done="Started" wide whole run=${run} fields=${[
    { key: "config", label: "Configuration, as YAML", type: "area", required: true, value: "entrypoint: [python3, -c, 'print(1)']\nresources: {slots: 0}\n" },
    { key: "after", label: "Starts after these tasks have completed: ids, one a line", type: "lines", value: [] }, { key: "noPause", label: "It is never paused, and never started twice", type: "check" }]}>
    <p class="muted">For files beside it: <code>det task create --context FOLDER</code>.</p></${FormButton}>`;
}

/** @param {{path: string, onClose: () => void}} props */
function Launch({ path, onClose }) {
  const pools = useGet("resource-pools");
  const workspaces = useGet("workspaces?limit=500");
  const templates = useGet("templates?limit=500");
  const [, title] = KINDS.find(([key]) => key === path) ?? ["", path];
  const run = async (/** @type {any} */ { slots, pool, workspace, template, description, entrypoint, idle, config: more }) => {
    const config = { resources: { slots, ...(pool && { resource_pool: pool }) }, ...(description && { description }), ...(entrypoint && { entrypoint: [entrypoint] }), ...(idle && { idle_timeout: idle }), ...more };
    const answer = await post(`${path}`, { config, templateName: template, workspaceId: Number(workspace || 0) });
    const task = answer[path.slice(0, -1)];
    go(path === "commands" ? `/det/tasks/${task.id}` : `/det/interactive/${task.id}/${path}`);
  };
  const options = (/** @type {any[]} */ rows, /** @type {string} */ key) => [["", "default"], ...rows.map((row) => [row[key], row.name])];
  return html`<${Form} title="Start ${title === "JupyterLab" ? title : `a ${title.toLowerCase()}`}" onClose=${onClose} confirm="Start" done="" whole run=${run} fields=${[
    { key: "description", label: "Name", placeholder: "made up" },
    ...(path === "commands" ? [{ key: "entrypoint", label: "Command, a line for the shell", placeholder: "nvidia-smi", required: true }] : []),
    { key: "slots", label: "Slots", type: "number", min: 0, value: 1 }, { key: "pool", at: "resource_pool pool", label: "Pool", type: "choice", options: options(pools.data?.resourcePools ?? [], "name") },
    { key: "workspace", at: "workspaceId workspace", label: "Workspace", type: "choice", options: options((workspaces.data?.workspaces ?? []).filter((/** @type {any} */ w) => !w.archived), "id") }, { key: "template", at: "templateName template", label: "Template", type: "choice", options: options(templates.data?.templates ?? [], "name") },
    ...(path === "notebooks" ? [{ key: "idle", at: "idle_timeout", label: "Ends unused after", placeholder: "never, or 2h" }] : []),
    { key: "config", label: "More of the configuration, as JSON", type: "json", rows: 4, placeholder: '{"environment": {"image": "…"}}' }]} />`;
}
