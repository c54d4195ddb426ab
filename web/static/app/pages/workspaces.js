// Workspaces: who shares what; their projects, members, pools and policies.
import { html, useState } from "../html.js";
import { patch, post, remove } from "../api.js";
import { useGet } from "../data.js";
import { may } from "../session.js";
import { many } from "../format.js";
import { Confirm, Dialog, Do, Empty, Head, Load, Table, Tabs, When } from "../ui.js";

export function Workspaces() {
  const list = useGet("workspaces?limit=500&sortBy=SORT_BY_NAME", ["experiments"]);
  const [open, setOpen] = useState(false);
  return html`<div class="stack"><${Head} title="Workspaces"><button class="first" onClick=${() => setOpen(true)}>New workspace</button></${Head}>
    ${open && html`<${Name} title="New workspace" label="Name" onClose=${() => setOpen(false)} run=${async (/** @type {string} */ name) => { await post("workspaces", { name }); list.reload(); }} />`}
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
  return html`<${Load} of=${one} page>${(/** @type {any} */ { workspace: w }) => html`<div><${Head} title=${w.name} crumbs=${[["Workspaces", "/det/workspaces"]]}>
      ${!w.immutable && may("UPDATE_WORKSPACE", w.id) && html`<${Rename} workspace=${w} reload=${one.reload} /><${Confirm} label="Delete" title="Delete workspace ${w.name}?" confirm="Delete" run=${() => remove(`workspaces/${id}`)} done="The workspace is being deleted">
        <p>${many(w.numProjects, "project")} with ${many(w.numExperiments, "experiment")} go, with all metrics, logs and checkpoints, and its tasks end. This can't be undone.</p></${Confirm}>`}</${Head}>
    <${Tabs} base="/det/workspaces/${id}" now=${tab} tabs=${[["projects", "Projects", w.numProjects], ["members", "Members"], ["pools", "Pools"], ["policies", "Policies"]]} />
    ${tab === "members" ? html`<${Members} id=${id} />` : tab === "pools" ? html`<${Pools} id=${id} workspace=${w} />` : tab === "policies" ? html`<${Policies} id=${id} />` : html`<${Projects} id=${id} />`}</div>`}</${Load}>`;
}

/** @param {{workspace: any, reload: () => void}} props */
function Rename({ workspace, reload }) {
  const [open, setOpen] = useState(false);
  return html`<button onClick=${() => setOpen(true)}>Rename</button>${open && html`<${Name} title="Rename ${workspace.name}" label="Name" value=${workspace.name} onClose=${() => setOpen(false)}
    run=${async (/** @type {string} */ name) => { await patch(`workspaces/${workspace.id}`, { name }); reload(); }} />`}`;
}

/** Ask for one line. @param {{title: string, label: string, value?: string, onClose: () => void, run: (text: string) => Promise<any>}} props */
export function Name({ title, label, value = "", onClose, run }) {
  const [text, setText] = useState(value);
  return html`<${Dialog} title=${title} onClose=${onClose}><label class="field">${label}<input value=${text} onInput=${(/** @type {any} */ e) => setText(e.target.value)} /></label>
    <div class="actions"><button onClick=${onClose}>Leave it</button><${Do} kind="first" disabled=${!text.trim()} run=${async () => { await run(text.trim()); onClose(); }}>Save</${Do}></div></${Dialog}>`;
}

/** @param {{id: string}} props */
function Projects({ id }) {
  const list = useGet(`workspaces/${id}/projects?limit=500`, ["experiments"]);
  const [open, setOpen] = useState(false);
  return html`<div class="stack">${may("CREATE_PROJECT", Number(id)) && html`<div class="row"><button onClick=${() => setOpen(true)}>New project</button></div>`}
    ${open && html`<${Name} title="New project" label="Name" onClose=${() => setOpen(false)} run=${async (/** @type {string} */ name) => { await post(`workspaces/${id}/projects`, { name }); list.reload(); }} />`}
    <${Load} of=${list}>${(/** @type {any} */ { projects }) => html`<${Table} label="projects" rows=${projects} id=${(/** @type {any} */ p) => p.id} columns=${[
      { key: "name", title: "Name", cell: (/** @type {any} */ p) => html`<a href="/det/projects/${p.id}">${p.name}</a>${p.archived ? html` <span class="tag">archived</span>` : ""}` },
      { key: "n", title: "Experiments", num: true, cell: (/** @type {any} */ p) => p.numExperiments },
      { key: "active", title: "Active", num: true, cell: (/** @type {any} */ p) => p.numActiveExperiments },
      { key: "last", title: "Last started", cell: (/** @type {any} */ p) => html`<${When} at=${p.lastExperimentStartedAt} />` },
      { key: "owner", title: "Owner", cell: (/** @type {any} */ p) => p.username },
      { key: "do", title: "", cell: (/** @type {any} */ p) => !p.immutable && may("DELETE_PROJECT", p.workspaceId) && html`<${Confirm} kind="small danger" label="Delete" title="Delete project ${p.name}?" confirm="Delete" run=${async () => { await remove(`projects/${p.id}`); list.reload(); }}><p>${many(p.numExperiments, "experiment")} go with it. This can't be undone.</p></${Confirm}>` },
    ]} empty=${html`<${Empty} title="No projects yet"></${Empty}>`} />`}</${Load}></div>`;
}

/** @param {{id: string}} props */
function Members({ id }) {
  const roles = useGet(`roles/workspace/${id}`);
  return html`<${Load} of=${roles}>${(/** @type {any} */ data) => {
    const names = new Map([...(data.usersAssignedDirectly ?? []).map((/** @type {any} */ u) => [`u${u.id ?? u.userId}`, u.displayName || u.username]), ...(data.groups ?? []).map((/** @type {any} */ g) => [`g${g.groupId}`, `group ${g.name}`])]);
    const rows = (data.assignments ?? []).flatMap((/** @type {any} */ each) => [
      ...(each.userRoleAssignments ?? []).map((/** @type {any} */ a) => ({ who: names.get(`u${a.userId}`) ?? `user ${a.userId}`, role: each.role.name, scope: a.roleAssignment?.scopeCluster })),
      ...(each.groupRoleAssignments ?? []).map((/** @type {any} */ a) => ({ who: names.get(`g${a.groupId}`) ?? `group ${a.groupId}`, role: each.role.name, scope: a.roleAssignment?.scopeCluster })),
    ]);
    return html`<${Table} label="members" rows=${rows} id=${(/** @type {any} */ r) => `${r.who}|${r.role}|${r.scope}`} columns=${[
      { key: "who", title: "Who", cell: (/** @type {any} */ r) => r.who }, { key: "role", title: "Role", cell: (/** @type {any} */ r) => r.role },
      { key: "scope", title: "Where", cell: (/** @type {any} */ r) => (r.scope ? "whole cluster" : "this workspace") }]}
      empty=${html`<${Empty} title="No roles were given here"><code>det rbac assign-role WorkspaceCreator --username-to-assign NAME --workspace-name NAME</code></${Empty}>`} />`;
  }}</${Load}>`;
}

/** @param {{id: string, workspace: any}} props */
function Pools({ id, workspace }) {
  const pools = useGet(`workspaces/${id}/available-resource-pools`);
  return html`<${Load} of=${pools} page>${(/** @type {any} */ data) => html`<${Table} label="pools" rows=${(data.resourcePools ?? []).map((/** @type {any} */ p) => (typeof p === "string" ? { name: p } : p))} id=${(/** @type {any} */ p) => p.name} columns=${[
    { key: "name", title: "Pool", cell: (/** @type {any} */ p) => html`<a href="/det/resourcepool/${encodeURIComponent(p.name)}">${p.name}</a>` },
    { key: "use", title: "Default of this workspace for", cell: (/** @type {any} */ p) => [workspace.defaultComputePool === p.name && "slots", workspace.defaultAuxPool === p.name && "no slots"].filter(Boolean).join(", ") || "–" }]} />`}</${Load}>`;
}

/** @param {{id: string}} props */
function Policies({ id }) {
  const experiments = useGet(`config-policies/workspaces/${id}/EXPERIMENT`);
  const tasks = useGet(`config-policies/workspaces/${id}/NTSC`);
  return html`<div class="cards">${[["Experiments", experiments], ["Notebooks, shells, commands, TensorBoards", tasks]].map(
    ([title, of]) => html`<div class="card" key=${title}><h3>${title}</h3><${Load} of=${of}>${(/** @type {any} */ data) => html`<pre class="code">${JSON.stringify(data.configPolicies ?? {}, null, 2)}</pre>`}</${Load}></div>`)}</div>`;
}
