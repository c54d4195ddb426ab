// For administrators: roles and who has them, members of groups, pools and who may use them, retention of logs.
import { html, useEffect, useState } from "./html.js";
import { call, get, patch, post, put, query, Problem } from "./api.js";
import { useGet, useRested } from "./data.js";
import { Field, Form, FormButton, Pick, typed } from "./form.js";
import { count, many } from "./format.js";
import { setQuery, useLocation, useQuery } from "./router.js";
import { NewPool, PoolActions } from "./pools.js";
import { session } from "./session.js";
import { Band, Choice, Confirm, Dialog, Do, Empty, Load, Pages, Search, Table, toast } from "./ui.js";

const LIMIT = 50;
const MOST_NAMES = 20;
const LEVELS = ["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"];

// -- names -----------------------------------------------------------------------------------------------------------

/** A line for the name of a user or a group, which offers those that there are. @param {{kind: "user" | "group", value: string, onChange: (name: string) => void}} props */
function Whose({ kind, value, onChange }) {
  const rested = useRested(value, 200);
  const [names, setNames] = useState(/** @type {string[]} */ ([]));
  useEffect(() => {
    let isCurrent = true;
    const found = kind === "user" ? get(`users${query({ limit: MOST_NAMES, name: rested })}`).then(({ users }) => users.map((/** @type {any} */ u) => u.username))
      : post("groups/search", { limit: 500 }).then(({ groups }) => groups.map((/** @type {any} */ g) => g.group.name).filter((/** @type {string} */ name) => name.toLowerCase().includes(rested.toLowerCase())).slice(0, MOST_NAMES));
    found.then((all) => isCurrent && setNames(all), (error) => isCurrent && toast(String(error.message), true));
    return () => void (isCurrent = false);
  }, [kind, rested]);
  return html`<${Field} label=${kind === "user" ? "Name of the user" : "Name of the group"} name=${kind}><input list="names" autocomplete="off" maxlength="200" value=${value} onInput=${typed(onChange)} /></${Field}>
    <datalist id="names">${names.map((name) => html`<option key=${name} value=${name} />`)}</datalist>`;
}

/** The number of the user or group of this name. @param {"user" | "group"} kind @param {string} name */
async function numberOf(kind, name) {
  if (kind === "user") return (await get(`users/${encodeURIComponent(name)}/by-username`)).user.id;
  const { groups } = await post("groups/search", { name, limit: 1 });
  if (!groups.length) throw new Problem(404, `group '${name}' not found`);
  return groups[0].group.groupId;
}

/** An assignment as the API takes it. @param {{userId?: number | null, groupId?: number | null, workspaceId?: number | null}} holder @param {number} roleId */
export function assignment({ userId, groupId, workspaceId }, roleId) {
  const roleAssignment = { role: { roleId }, ...(workspaceId ? { scopeWorkspaceId: workspaceId } : { scopeCluster: true }) };
  return userId ? { userRoleAssignments: [{ userId, roleAssignment }] } : { groupRoleAssignments: [{ groupId, roleAssignment }] };
}

// -- roles -----------------------------------------------------------------------------------------------------------

export function Roles() {
  const [chosen] = useQuery("role");
  const list = useGet("roles/search", [], JSON.stringify({ limit: 100 }));
  return html`<${Load} of=${list}>${(/** @type {any} */ { roles }) => {
    const role = roles.find((/** @type {any} */ each) => String(each.roleId) === chosen);
    return html`<div class="stack">${!session()?.master.rbacEnabled && html`<${Band}>Roles are not in force: the access mode of this cluster is <code>basic</code>. Set <code>UNDETERRED_ACCESS</code> to <code>rbac</code> to use them.</${Band}>`}<${Table} label="roles" rows=${roles} id=${(/** @type {any} */ r) => r.roleId} columns=${[
      { key: "name", title: "Role", cell: (/** @type {any} */ r) => html`<a href="/det/admin/roles?role=${r.roleId}" aria-current=${r === role ? "true" : null}>${r.name}</a>` },
      { key: "where", title: "Can be given", cell: (/** @type {any} */ r) => (r.scopeTypeMask.workspace ? "in a workspace or in all" : "in the whole cluster only") },
      { key: "n", title: "Permissions", num: true, cell: (/** @type {any} */ r) => r.permissions.length },
      { key: "what", title: "What it permits", wrap: true, cell: (/** @type {any} */ r) => html`<details><summary>${r.permissions.slice(-2).map((/** @type {any} */ p) => p.name).join(", ")}${r.permissions.length > 2 ? ", …" : ""}</summary><p>${r.permissions.map((/** @type {any} */ p) => p.name).join(", ")}</p></details>` },
    ]} />${role ? html`<${Holders} key=${role.roleId} role=${role} />` : html`<p class="muted">Choose a role to see who has it.</p>`}</div>`;
  }}</${Load}>`;
}

/** Who has a role, and where. @param {{role: any}} props */
function Holders({ role }) {
  const { query: now } = useLocation();
  const [name] = useQuery("name");
  const [open, setOpen] = useState(false);
  const offset = Number(now.get("offset") ?? 0);
  const list = useGet(`undeterred/roles/${role.roleId}/holders${query({ limit: LIMIT, offset, name })}`);
  return html`<section class="stack tight" aria-label="holders of the role"><div class="row spread"><h2>Who has the role ${role.name}</h2>
      <div class="row"><${Search} label="filter by name" value=${name} onChange=${(/** @type {string} */ text) => setQuery({ name: text, offset: "" })} /><button class="first" onClick=${() => setOpen(true)}>Give this role</button></div></div>
    <${Load} of=${list}>${(/** @type {any} */ { holders, pagination }) => html`<${Table} label="holders" rows=${holders} id=${(/** @type {any} */ h) => `${h.userId} ${h.groupId} ${h.workspaceId}`} columns=${[
      { key: "kind", title: "Kind", cell: (/** @type {any} */ h) => (h.userId ? "user" : "group") }, { key: "name", title: "Name", cell: (/** @type {any} */ h) => h.name },
      { key: "where", title: "Where", cell: (/** @type {any} */ h) => (h.workspaceId ? html`<a href="/det/workspaces/${h.workspaceId}/members">${h.workspaceName}</a>` : role.scopeTypeMask.workspace ? "all workspaces" : "the whole cluster") },
      { key: "do", title: "", cell: (/** @type {any} */ h) => html`<${Confirm} kind="small danger" label="Take it back" title="Take ${role.name} from ${h.name}?" confirm="Take it back" run=${async () => { await post("roles/remove-assignments", assignment(h, role.roleId)); list.reload(); }}><p>${h.userId ? "The user loses" : "Its members lose"} what the role permits ${h.workspaceId ? `in workspace ${h.workspaceName}` : "everywhere"}. Other roles stay.</p></${Confirm}>` },
    ]} empty=${html`<${Empty} title=${name ? "No name matches" : "Nobody has this role"}></${Empty}>`} />
      <${Pages} total=${pagination.total} offset=${offset} limit=${LIMIT} onOffset=${(/** @type {number} */ n) => setQuery({ offset: n ? String(n) : "" })} />`}</${Load}>
    ${open && html`<${Give} role=${role} onClose=${() => setOpen(false)} reload=${list.reload} />`}</section>`;
}

/** @param {{role: any, onClose: () => void, reload: () => void}} props */
function Give({ role, onClose, reload }) {
  const [kind, setKind] = useState(/** @type {"user" | "group"} */ ("user"));
  const [name, setName] = useState("");
  const [workspace, setWorkspace] = useState("");
  const places = useGet(role.scopeTypeMask.workspace ? "workspaces?limit=1000&sortBy=SORT_BY_NAME" : null);
  const run = async () => {
    const number = await numberOf(kind, name.trim());
    await post("roles/add-assignments", assignment({ [kind === "user" ? "userId" : "groupId"]: number, workspaceId: Number(workspace) || null }, role.roleId));
    onClose();
    reload();
  };
  return html`<${Dialog} title="Give the role ${role.name}" onClose=${onClose}>
    <${Choice} label="to a" value=${kind} onChange=${(/** @type {any} */ each) => { setKind(each); setName(""); }} options=${[["user", "user"], ["group", "group"]]} />
    <${Whose} kind=${kind} value=${name} onChange=${setName} />
    ${role.scopeTypeMask.workspace && html`<${Field} label="Where" name="scopeWorkspaceId workspace"><${Pick} value=${workspace} set=${setWorkspace} options=${[["", "in all workspaces"], ...(places.data?.workspaces ?? []).map((/** @type {any} */ w) => [w.id, `in ${w.name}`])]} /></${Field}>`}
    <div class="actions"><button onClick=${onClose}>Leave it</button><${Do} kind="first" disabled=${!name.trim()} run=${run} done="Given">Give it</${Do}></div></${Dialog}>`;
}

/** Give a role in one workspace, for its administrators. @param {{workspaceId: number, reload: () => void}} props */
export function GiveHere({ workspaceId, reload }) {
  const [open, setOpen] = useState(false);
  return html`<button onClick=${() => setOpen(true)}>Give a role</button>${open && html`<${GiveRole} workspaceId=${workspaceId} onClose=${() => setOpen(false)} reload=${reload} />`}`;
}

/** @param {{workspaceId: number, onClose: () => void, reload: () => void}} props */
function GiveRole({ workspaceId, onClose, reload }) {
  const [kind, setKind] = useState(/** @type {"user" | "group"} */ ("user"));
  const [name, setName] = useState("");
  const [role, setRole] = useState("");
  const list = useGet("roles/search/by-assignability", [], JSON.stringify({ workspaceId, limit: 100 }));
  const roles = list.data?.roles ?? [];
  const chosen = role || String(roles[0]?.roleId ?? "");
  const run = async () => {
    const number = await numberOf(kind, name.trim());
    await post("roles/add-assignments", assignment({ [kind === "user" ? "userId" : "groupId"]: number, workspaceId }, Number(chosen)));
    onClose();
    reload();
  };
  return html`<${Dialog} title="Give a role in this workspace" onClose=${onClose}>
    <${Choice} label="to a" value=${kind} onChange=${(/** @type {any} */ each) => { setKind(each); setName(""); }} options=${[["user", "user"], ["group", "group"]]} />
    <${Whose} kind=${kind} value=${name} onChange=${setName} />
    <${Field} label="Role" name="roleId role"><${Pick} value=${chosen} set=${setRole} options=${roles.map((/** @type {any} */ r) => [r.roleId, r.name])} /></${Field}>
    <div class="actions"><button onClick=${onClose}>Leave it</button><${Do} kind="first" disabled=${!name.trim() || !chosen} run=${run} done="Given">Give it</${Do}></div></${Dialog}>`;
}

/** @param {{row: any, workspaceId: number, reload: () => void}} props */
export const TakeHere = ({ row, workspaceId, reload }) => html`<${Confirm} kind="small danger" label="Take it back" title="Take ${row.role} from ${row.who}?" confirm="Take it back"
  run=${async () => { await post("roles/remove-assignments", assignment({ userId: row.userId, groupId: row.groupId, workspaceId }, row.roleId)); reload(); }}><p>${row.userId ? "The user loses" : "Its members lose"} what the role permits in this workspace. Other roles stay.</p></${Confirm}>`;

// -- groups ----------------------------------------------------------------------------------------------------------

/** @param {{id: string, onChange: () => void}} props */
export function GroupMembers({ id, onChange }) {
  const one = useGet(`groups/${id}`);
  const [name, setName] = useState("");
  const [filter, setFilter] = useState("");
  const [offset, setOffset] = useState(0);
  const change = async (/** @type {any} */ what) => {
    one.set(await put(`groups/${id}`, what));
    onChange();
  };
  return html`<${Load} of=${one}>${(/** @type {any} */ { group }) => {
    const users = group.users.filter((/** @type {any} */ u) => `${u.username} ${u.displayName}`.toLowerCase().includes(filter.toLowerCase()));
    return html`<section class="stack tight" aria-label="members of the group"><div class="row spread"><div class="row"><h2>Members of ${group.name}</h2><${FormButton} kind="small" label="Rename" title="Rename group ${group.name}" fields=${[{ key: "name", label: "Name", value: group.name, required: true }]} run=${change} /></div>${group.users.length > LIMIT && html`<${Search} label="filter by name" value=${filter} onChange=${(/** @type {string} */ text) => { setFilter(text); setOffset(0); }} />`}</div>
      <div class="row" style=${{ alignItems: "end" }}><${Whose} kind="user" value=${name} onChange=${setName} /><${Do} kind="first" disabled=${!name.trim()} run=${async () => { await change({ addUsers: [await numberOf("user", name.trim())] }); setName(""); }} done="Added">Add</${Do}></div>
      <${Table} label="members" rows=${users.slice(offset, offset + LIMIT)} id=${(/** @type {any} */ u) => u.id} columns=${[
        { key: "name", title: "User", cell: (/** @type {any} */ u) => u.username }, { key: "display", title: "Shown as", cell: (/** @type {any} */ u) => u.displayName || "–" }, { key: "active", title: "Active", cell: (/** @type {any} */ u) => (u.active ? "yes" : "no") },
        { key: "do", title: "", cell: (/** @type {any} */ u) => html`<${Confirm} kind="small danger" label="Remove" title="Remove ${u.username} from ${group.name}?" confirm="Remove" run=${() => change({ removeUsers: [u.id] })}><p>The user loses the roles of this group. Roles of their own stay.</p></${Confirm}>` }]}
        empty=${html`<${Empty} title=${filter ? "No name matches" : "Nobody is in this group yet"}></${Empty}>`} />
      <${Pages} total=${users.length} offset=${offset} limit=${LIMIT} onOffset=${setOffset} /></section>`;
  }}</${Load}>`;
}

// -- pools -----------------------------------------------------------------------------------------------------------

export function PoolAccess() {
  const { query: now } = useLocation();
  const offset = Number(now.get("offset") ?? 0);
  const pools = useGet(`resource-pools${query({ limit: LIMIT, offset })}`);
  const places = useGet("workspaces?limit=1000&sortBy=SORT_BY_NAME");
  const access = useGet("resource-pool-access");
  return html`<div class="stack"><div class="row spread"><p class="muted">A pool that is bound to workspaces is there for these only; one without bindings is there for all. A restricted one is there for administrators and for those to whom it is granted.</p><${NewPool} reload=${pools.reload} /></div>
    <${Load} of=${places}>${(/** @type {any} */ { workspaces }) => html`<${Load} of=${pools}>${(/** @type {any} */ { resourcePools, pagination }) => html`<${Table} label="pool access" rows=${resourcePools} id=${(/** @type {any} */ p) => p.name} columns=${[
      { key: "name", title: "Pool", cell: (/** @type {any} */ p) => html`<a href="/det/resourcepool/${encodeURIComponent(p.name)}">${p.name}</a>` },
      { key: "slots", title: "Slots", num: true, cell: (/** @type {any} */ p) => count(p.slotsAvailable) },
      { key: "who", title: "Workspaces", wrap: true, cell: (/** @type {any} */ p) => html`<${Bindings} key=${p.name} pool=${p} workspaces=${workspaces} />` },
      { key: "grants", title: "Who may use it", wrap: true, cell: (/** @type {any} */ p) => html`<${Load} of=${access} height=${20}>${(/** @type {any} */ { resource_pools }) => html`<${Grants} pool=${p} access=${resource_pools.find((/** @type {any} */ each) => each.pool_name === p.name)} reload=${access.reload} />`}</${Load}>` },
      { key: "do", title: "", cell: (/** @type {any} */ p) => html`<${PoolActions} pool=${p} reload=${pools.reload} />` },
    ]} empty=${html`<${Empty} title="No pools yet"><code>det resource-pool create NAME</code></${Empty}>`} />
      <${Pages} total=${pagination.total} offset=${offset} limit=${LIMIT} onOffset=${(/** @type {number} */ n) => setQuery({ offset: n ? String(n) : "" })} />`}</${Load}>`}</${Load}></div>`;
}

/** @param {{pool: any, access: any, reload: () => void}} props */
function Grants({ pool, access, reload }) {
  if (!access) return null;
  const where = `resource-pool-access/${encodeURIComponent(pool.name)}`;
  const done = (/** @type {any} */ { warnings }) => {
    for (const warning of warnings) toast(warning, true);
    reload();
  };
  const isPublic = access.mode === "public";
  const held = [...access.users.map((/** @type {any} */ u) => ["usernames", u.username, "user"]), ...access.groups.map((/** @type {any} */ g) => ["groups", g.name, "group"]), ...access.workspaces.map((/** @type {any} */ w) => ["workspaces", w.name, "workspace"])];
  return html`<div class="row"><span>${isPublic ? "all" : "administrators"}</span>${!isPublic && held.map(([key, name, kind]) => html`<span class="row tight" key=${key + name}>${kind} ${name}
      <${Confirm} kind="quiet small" label=${html`<span aria-label="revoke ${pool.name} from ${kind} ${name}">✕</span>`} title="Revoke ${pool.name} from ${name}?" confirm="Revoke" run=${async () => done(await post(`${where}/revoke`, { [key]: [name] }))}><p>Nothing new of theirs goes there. What is in the pool stays until it ends.</p></${Confirm}></span>`)}
    ${!isPublic && html`<${FormButton} kind="small" label="Grant" about="grant ${pool.name}" title="Grant ${pool.name}" confirm="Grant" done="Granted" whole fields=${[{ key: "kind", label: "To a", type: "choice", value: "usernames", options: [["usernames", "user"], ["groups", "group"], ["workspaces", "workspace"]] }, { key: "name", label: "Name", required: true }]} run=${async (/** @type {any} */ { kind, name }) => done(await post(`${where}/grant`, { [kind]: [name] }))} />`}
    ${!(pool.defaultComputePool || pool.defaultAuxPool) && html`<${Confirm} kind="small" label=${isPublic ? "Restrict" : "Open"} title="${isPublic ? "Restrict" : "Open"} ${pool.name}?" confirm=${isPublic ? "Restrict" : "Open"} run=${async () => done(await put(where, { mode: isPublic ? "restricted" : "public" }))}><p>${isPublic ? "Only administrators, and those to whom it is granted, may use it then. What is in it stays until it ends." : "All users may use it then. Its grants are kept."}</p></${Confirm}>`}</div>`;
}

/** @param {{pool: any, workspaces: any[]}} props */
function Bindings({ pool, workspaces }) {
  const path = `resource-pools/${encodeURIComponent(pool.name)}/workspace-bindings`;
  const list = useGet(path);
  const [open, setOpen] = useState(false);
  const isDefault = pool.defaultComputePool || pool.defaultAuxPool;
  return html`<${Load} of=${list} height=${20}>${(/** @type {any} */ { workspaceIds }) => {
    const name = (/** @type {number} */ id) => workspaces.find((each) => each.id === id)?.name ?? `workspace ${id}`;
    const unbind = (/** @type {number} */ id) => async () => {
      await call("DELETE", `/api/v1/${path}`, { workspaceIds: [id] });
      list.reload();
    };
    return html`<div class="row">${workspaceIds.length ? workspaceIds.map((/** @type {number} */ id) => html`<span class="row tight" key=${id}><a href="/det/workspaces/${id}">${name(id)}</a>
        <${Confirm} kind="quiet small" label=${html`<span aria-label="unbind ${name(id)} from ${pool.name}">✕</span>`} title="Unbind ${name(id)} from ${pool.name}?" confirm="Unbind" run=${unbind(id)}><p>${workspaceIds.length > 1 ? "The workspace can no longer use the pool. What runs there goes on." : "It is the last one: the pool is then there for all workspaces."}</p></${Confirm}></span>`)
      : html`<span>all${isDefault ? " (a default of the cluster)" : ""}</span>`}
      ${!isDefault && html`<button class="small" aria-label="bind ${pool.name} to a workspace" onClick=${() => setOpen(true)}>Bind</button>`}
      ${open && html`<${Bind} pool=${pool} path=${path} left=${workspaces.filter((each) => !workspaceIds.includes(each.id))} isFirst=${!workspaceIds.length} onClose=${() => setOpen(false)} reload=${list.reload} />`}</div>`;
  }}</${Load}>`;
}

/** @param {{pool: any, path: string, left: any[], isFirst: boolean, onClose: () => void, reload: () => void}} props */
const Bind = ({ pool, path, left, isFirst, onClose, reload }) => html`<${Form} title="Bind ${pool.name} to a workspace" onClose=${onClose} confirm="Bind" done="Bound" whole fields=${[{ key: "id", at: "workspaceIds", label: "Workspace", type: "choice", value: left[0]?.id, options: left.map((each) => [each.id, each.name]), required: true }]}
  run=${async (/** @type {any} */ { id }) => { await post(path, { workspaceIds: [Number(id)] }); reload(); }}>${isFirst && html`<p>The pool is there for all workspaces now. Bound, it is there for this one only.</p>`}</${Form}>`;

// -- logs ------------------------------------------------------------------------------------------------------------

export function LogRetention() {
  const config = useGet("master/config");
  return html`<${Load} of=${config}>${(/** @type {any} */ data) => {
    const days = (data.config ?? data).retention_policy?.log_retention_days;
    return html`<div class="stack"><p>${days === null || days === undefined || days < 0 ? "Logs are kept without a limit" : `Logs are removed ${many(days, "day")} after their end`}, unless an experiment or a trial says otherwise. Set <code>UNDETERRED_LOG_RETENTION_DAYS</code> to change that.</p>
      <p class="muted">What has expired is removed each hour.</p>
      <div class="row"><${FormButton} label="Log of the API" title="What the log of the API holds" fields=${[{ key: "level", at: "log.level", label: "Lines from this level on", type: "choice", value: String((data.config ?? data).log?.level ?? "info").toUpperCase(), options: LEVELS.map((level) => [level, level.toLowerCase()]) }, { key: "color", label: "in colours", type: "check", value: (data.config ?? data).log?.color }]}
        run=${async (/** @type {any} */ { level, ...given }) => { const log = { ...given, ...(level ? { level: `LOG_LEVEL_${level}` } : {}) }; await patch("master/config", { config: { log }, fieldMask: { paths: Object.keys(log).map((name) => `log.${name}`) } }); config.reload(); }} />
        <${Confirm} label="Remove expired logs now" title="Remove expired logs now?" confirm="Remove" run=${async () => { const { removedCount } = await post("cleanup_logs"); toast(`${many(Number(removedCount), "line")} removed`); }}><p>Lines of logs whose time is over go. This can't be undone.</p></${Confirm}></div></div>`;
  }}</${Load}>`;
}
