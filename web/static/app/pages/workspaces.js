// Workspaces: who shares what; their projects, members, pools and policies.
import { html, useState } from "../html.js";
import { patch, post, put, remove } from "../api.js";
import { useGet } from "../data.js";
import { Form, FormButton } from "../form.js";
import { lazy } from "../lazy.js";
import { isAdmin, may, session } from "../session.js";
import { many } from "../format.js";
import { Confirm, Do, Empty, Head, Load, Table, Tabs, When } from "../ui.js";

const TaskList = lazy("TaskList", () => import("../tasklist.js"));
const WorkspaceBudget = lazy("WorkspaceBudget", () => import("../budget.js"));
const ModelList = lazy("ModelList", () => import("./models.js"));
const [GiveHere, TakeHere] = ["GiveHere", "TakeHere"].map((name) => lazy(name, () => import("../access.js")));

export function Workspaces() {
  const list = useGet("workspaces?limit=500&sortBy=SORT_BY_NAME", ["experiments"]);
  const [open, setOpen] = useState(false);
  return html`<div class="stack"><${Head} title="Workspaces"><button class="first" onClick=${() => setOpen(true)}>New workspace</button></${Head}>
    ${open && html`<${Settings} onClose=${() => setOpen(false)} reload=${list.reload} />`}
    <${Load} of=${list}>${(/** @type {any} */ { workspaces }) => html`<${Table} label="workspaces" rows=${[...workspaces].sort((a, b) => Number(b.pinned) - Number(a.pinned))} id=${(/** @type {any} */ w) => w.id} columns=${[
      { key: "name", title: "Name", cell: (/** @type {any} */ w) => html`<a href="/det/workspaces/${w.id}">${w.name}</a>${w.archived ? html` <span class="tag">archived</span>` : ""}${w.pinned ? html` <span class="tag">pinned</span>` : ""}` },
      { key: "projects", title: "Projects", num: true, cell: (/** @type {any} */ w) => w.numProjects },
      { key: "experiments", title: "Experiments", num: true, cell: (/** @type {any} */ w) => w.numExperiments },
      { key: "owner", title: "Owner", cell: (/** @type {any} */ w) => w.username },
      { key: "do", title: "", cell: (/** @type {any} */ w) => html`<div class="row tight">
        <${Do} kind="small" run=${async () => { await post(`workspaces/${w.id}/${w.pinned ? "unpin" : "pin"}`); list.reload(); }}>${w.pinned ? "Unpin" : "Pin"}</${Do}>
        ${!w.immutable && may("UPDATE_WORKSPACE", w.id) && html`<${Do} kind="small" run=${async () => { await post(`workspaces/${w.id}/${w.archived ? "unarchive" : "archive"}`); list.reload(); }}>${w.archived ? "Unarchive" : "Archive"}</${Do}>`}</div>` },
    ]} empty=${html`<${Empty} title="You see no workspace"><p>Ask an administrator for a role in one, or make your own.</p></${Empty}>`} />`}</${Load}></div>`;
}

/** @param {{id: string, tab?: string}} props */
export function WorkspacePage({ id, tab = "projects" }) {
  const one = useGet(`workspaces/${id}`);
  const [open, setOpen] = useState(false);
  return html`<${Load} of=${one} page>${(/** @type {any} */ { workspace: w }) => html`<div><${Head} title=${w.name} crumbs=${[["Workspaces", "/det/workspaces"]]}>
      ${may("UPDATE_WORKSPACE", w.id) && html`${!w.archived && html`<button onClick=${() => setOpen(true)}>Settings</button>`}${open && html`<${Settings} workspace=${w} onClose=${() => setOpen(false)} reload=${one.reload} />`}${!w.immutable && html`<${Confirm} label="Delete" title="Delete workspace ${w.name}?" confirm="Delete" run=${() => remove(`workspaces/${id}`)} done="The workspace is being deleted">
        <p>${many(w.numProjects, "project")} with ${many(w.numExperiments, "experiment")} go, with all metrics, logs and checkpoints, and its tasks end. This can't be undone.</p></${Confirm}>`}`}</${Head}>
    <${Tabs} base="/det/workspaces/${id}" now=${tab} tabs=${[["projects", "Projects", w.numProjects], ["tasks", "Tasks"], ["models", "Models"], ["members", "Members"], ["pools", "Pools"], ["policies", "Policies"], ["budget", "Budget"]]} />
    ${tab === "budget" ? html`<${WorkspaceBudget} w=${w} />` : tab === "tasks" ? html`<div class="stack"><${TaskList} filter=${{ workspaceId: w.id }} /></div>` : tab === "models" ? html`<${ModelList} workspaceId=${w.id} />` : tab === "members" ? html`<${Members} id=${id} canGive=${may("ASSIGN_ROLES", w.id)} />` : tab === "pools" ? html`<${Pools} id=${id} workspace=${w} />` : tab === "policies" ? html`<${Policies} of="workspaces/${id}" where="of workspace ${w.name}" canChange=${may("UPDATE_WORKSPACE", w.id)} />` : html`<${Projects} id=${id} />`}</div>`}</${Load}>`;
}

/** @param {any} project */
const projectFields = (project) => [{ key: "name", label: "Name", value: project.name, required: true }, { key: "description", label: "Description", value: project.description }, { key: "key", label: "Key, up to 5 letters or digits", value: project.key, placeholder: "made from the name" }];

/** @param {{id: string}} props */
function Projects({ id }) {
  const list = useGet(`workspaces/${id}/projects?limit=500`, ["experiments"]);
  const canChange = (/** @type {any} */ p) => p.userId === session()?.user.id || may("UPDATE_PROJECT", p.workspaceId);
  return html`<div class="stack">${may("CREATE_PROJECT", Number(id)) && html`<div class="row"><${FormButton} label="New project" title="New project" confirm="Create" done="Created" fields=${projectFields({})} run=${async (/** @type {any} */ given) => { await post(`workspaces/${id}/projects`, given); list.reload(); }} /></div>`}
    <${Load} of=${list}>${(/** @type {any} */ { projects }) => html`<${Table} label="projects" rows=${projects} id=${(/** @type {any} */ p) => p.id} columns=${[
      { key: "name", title: "Name", cell: (/** @type {any} */ p) => html`<a href="/det/projects/${p.id}">${p.name}</a>${p.archived ? html` <span class="tag">archived</span>` : ""}` },
      { key: "n", title: "Experiments", num: true, cell: (/** @type {any} */ p) => p.numExperiments },
      { key: "active", title: "Active", num: true, cell: (/** @type {any} */ p) => p.numActiveExperiments },
      { key: "last", title: "Last started", cell: (/** @type {any} */ p) => html`<${When} at=${p.lastExperimentStartedAt} />` },
      { key: "owner", title: "Owner", cell: (/** @type {any} */ p) => p.username },
      { key: "do", title: "", cell: (/** @type {any} */ p) => !p.immutable && canChange(p) && html`<div class="row tight">
        ${!p.archived && html`<${FormButton} kind="small" label="Edit" about="edit project ${p.name}" title="Project ${p.name}" fields=${projectFields(p)} run=${async (/** @type {any} */ given) => { await patch(`projects/${p.id}`, given); list.reload(); }} />`}
        <${Do} kind="small" run=${async () => { await post(`projects/${p.id}/${p.archived ? "unarchive" : "archive"}`); list.reload(); }}>${p.archived ? "Unarchive" : "Archive"}</${Do}>
        <${Confirm} kind="small danger" label="Delete" title="Delete project ${p.name}?" confirm="Delete" run=${async () => { await remove(`projects/${p.id}`); list.reload(); }}><p>${many(p.numExperiments, "experiment")} go with it, with all trials, metrics, logs and checkpoints. This can't be undone.</p></${Confirm}></div>` },
    ]} empty=${html`<${Empty} title="No projects yet"></${Empty}>`} />`}</${Load}></div>`;
}

/** @param {{id: string, canGive: boolean}} props */
function Members({ id, canGive }) {
  const roles = useGet(`roles/workspace/${id}`);
  return html`<${Load} of=${roles}>${(/** @type {any} */ data) => {
    const names = new Map([...(data.usersAssignedDirectly ?? []).map((/** @type {any} */ u) => [`u${u.id ?? u.userId}`, u.displayName || u.username]), ...(data.groups ?? []).map((/** @type {any} */ g) => [`g${g.groupId}`, `group ${g.name}`])]);
    const rows = (data.assignments ?? []).flatMap((/** @type {any} */ each) => [
      ...(each.userRoleAssignments ?? []).map((/** @type {any} */ a) => ({ who: names.get(`u${a.userId}`) ?? `user ${a.userId}`, role: each.role.name, roleId: each.role.roleId, userId: a.userId, scope: a.roleAssignment?.scopeCluster })),
      ...(each.groupRoleAssignments ?? []).map((/** @type {any} */ a) => ({ who: names.get(`g${a.groupId}`) ?? `group ${a.groupId}`, role: each.role.name, roleId: each.role.roleId, groupId: a.groupId, scope: a.roleAssignment?.scopeCluster })),
    ]);
    return html`<div class="stack">${canGive && html`<div class="row"><${GiveHere} workspaceId=${Number(id)} reload=${roles.reload} /></div>`}<${Table} label="members" rows=${rows} id=${(/** @type {any} */ r) => `${r.who}|${r.role}|${r.scope}`} columns=${[
      { key: "who", title: "Who", cell: (/** @type {any} */ r) => r.who }, { key: "role", title: "Role", cell: (/** @type {any} */ r) => r.role },
      { key: "scope", title: "Where", cell: (/** @type {any} */ r) => (r.scope ? "whole cluster" : "this workspace") },
      { key: "do", title: "", cell: (/** @type {any} */ r) => canGive && !r.scope && html`<${TakeHere} row=${r} workspaceId=${Number(id)} reload=${roles.reload} />` }]}
      empty=${html`<${Empty} title="No roles were given here"></${Empty}>`} /></div>`;
  }}</${Load}>`;
}

/** @param {{id: string, workspace: any}} props */
function Pools({ id, workspace }) {
  const pools = useGet(`workspaces/${id}/available-resource-pools`);
  return html`<${Load} of=${pools} page>${(/** @type {any} */ data) => html`<${Table} label="pools" rows=${(data.resourcePools ?? []).map((/** @type {any} */ p) => (typeof p === "string" ? { name: p } : p))} id=${(/** @type {any} */ p) => p.name} columns=${[
    { key: "name", title: "Pool", cell: (/** @type {any} */ p) => html`<a href="/det/resourcepool/${encodeURIComponent(p.name)}">${p.name}</a>` },
    { key: "use", title: "Default of this workspace for", cell: (/** @type {any} */ p) => [workspace.defaultComputePool === p.name && "slots", workspace.defaultAuxPool === p.name && "no slots"].filter(Boolean).join(", ") || "–" }]} />`}</${Load}>`;
}

/** Rules for configurations, of a workspace or of the cluster. @param {{of: string, where: string, canChange: boolean}} props */
export function Policies({ of, where, canChange }) {
  return html`<div class="cards">${[["EXPERIMENT", "Experiments"], ["NTSC", "Notebooks, shells, commands, TensorBoards"]].map(([kind, title]) => html`<${Policy} key=${kind} of=${of} where=${where} canChange=${canChange} kind=${kind} title=${title} />`)}</div>`;
}

/** @param {{of: string, where: string, canChange: boolean, kind: string, title: string}} props */
function Policy({ of, where, canChange, kind, title }) {
  const path = `config-policies/${of}/${kind}`;
  const one = useGet(path);
  return html`<section class="card stack tight"><h2>${title}</h2><${Load} of=${one}>${(/** @type {any} */ { configPolicies }) => {
    const isThere = Object.keys(configPolicies ?? {}).length > 0;
    return html`${isThere ? html`<pre class="code" tabindex="0">${JSON.stringify(configPolicies, null, 2)}</pre>` : html`<p class="muted">No rules.</p>`}
      ${canChange && html`<div class="row"><${FormButton} label=${isThere ? "Change" : "Set rules"} about="${isThere ? "change" : "set"} the rules for ${title.toLowerCase()}" title="Rules for ${title.toLowerCase()}" wide fields=${[{ key: "configPolicies", label: "Rules, as YAML: invariant_config and constraints", type: "area", required: true, placeholder: "constraints:\n  resources: {max_slots: 8}", value: isThere ? JSON.stringify(configPolicies, null, 2) : "" }]}
        run=${async (/** @type {any} */ given) => { await put(path, given); one.reload(); }} />
        ${isThere && html`<${Confirm} label="Remove" title="Remove these rules?" confirm="Remove" done="Removed" run=${async () => { await remove(path); one.reload(); }}><p>The rules ${where} for ${title.toLowerCase()} go: ${Object.keys(configPolicies).join(", ")}. What runs stays as it is.</p></${Confirm}>`}</div>`}`;
  }}</${Load}></section>`;
}

/** What a workspace is created with and can be changed. @param {{workspace?: any, onClose: () => void, reload: () => void}} props */
function Settings({ workspace: w, onClose, reload }) {
  const pools = useGet("resource-pools");
  if (!pools.data) return null;
  const group = w?.agentUserGroup ?? {};
  const choices = [["", "of the cluster"], ...pools.data.resourcePools.map((/** @type {any} */ p) => [p.name, p.name])];
  const owner = ["agentUid", "agentUser", "agentGid", "agentGroup"];
  const run = async (/** @type {any} */ given) => {
    const sent = Object.fromEntries(Object.entries(given).filter(([key]) => !owner.includes(key)));
    if (owner.some((key) => key in given)) sent.agentUserGroup = { ...Object.fromEntries(owner.map((key) => [key, group[key] ?? null])), ...Object.fromEntries(owner.filter((key) => key in given).map((key) => [key, given[key]])) };
    if ("checkpointStorageConfig" in sent) sent.checkpointStorageConfig ??= {}; // null would leave it as it is
    if (w) await patch(`workspaces/${w.id}`, sent);
    else await post("workspaces", sent);
    reload();
  };
  return html`<${Form} title=${w ? `Settings of ${w.name}` : "New workspace"} onClose=${onClose} confirm=${w ? "Save" : "Create"} run=${run} fields=${[
    ...(w?.immutable ? [] : [{ key: "name", label: "Name", value: w?.name, required: true }]),
    { key: "everyone", label: "Role of all users here", type: "choice", value: w?.everyone, options: [["", "none"], ["viewer", "viewer"], ["contributor", "contributor"], ["editor", "editor"]] },
    { key: "defaultComputePool", label: "Pool for what has slots", type: "choice", value: w?.defaultComputePool, options: choices }, { key: "defaultAuxPool", label: "Pool for what has no slots", type: "choice", value: w?.defaultAuxPool, options: choices },
    { key: "checkpointStorageConfig", label: "Where checkpoints go, as JSON; empty: as the cluster says", type: "json", value: w?.checkpointStorageConfig, placeholder: '{"type": "shared_fs", "host_path": "/data"}' },
    ...(isAdmin() ? [{ key: "agentUser", label: "Tasks run on the hosts as user", value: group.agentUser }, { key: "agentUid", label: "with the user id", type: "number", min: 0, value: group.agentUid }, { key: "agentGroup", label: "in the group", value: group.agentGroup }, { key: "agentGid", label: "with the group id", type: "number", min: 0, value: group.agentGid }] : []),
  ]} />`;
}
