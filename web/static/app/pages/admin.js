// For administrators: users, groups, roles, tokens, access to pools, the message, retention of logs, imports, the audit log.
import { html, useState } from "../html.js";
import { patch, post, put, query, remove } from "../api.js";
import { useGet } from "../data.js";
import { exact } from "../format.js";
import { isAdmin } from "../session.js";
import { useQuery } from "../router.js";
import { DescribeToken, TokenBudget } from "../tokens.js";
import { Asks, Confirm, Do, Empty, Head, Load, Search, Table, Tabs, When } from "../ui.js";
import { GroupMembers, LogRetention, PoolAccess, Roles } from "../access.js";
import { Field, Form, FormButton, typed } from "../form.js";
import { lazy } from "../lazy.js";
import { Policies } from "./workspaces.js";

const Imports = lazy("Imports", () => import("../imports.js"));

/** @param {{tab?: string}} props */
export function Admin({ tab = "users" }) {
  if (!isAdmin()) return html`<${Empty} title="Not allowed"><p>These pages are for administrators of the cluster.</p></${Empty}>`;
  return html`<div><${Head} title="Administration" /><${Tabs} base="/det/admin" now=${tab} tabs=${[["users", "Users"], ["groups", "Groups"], ["roles", "Roles"], ["pools", "Pools"], ["policies", "Policies"], ["tokens", "Access tokens"], ["message", "Message"], ["logs", "Logs"], ["imports", "Imports"], ["audit", "Audit log"]]} />
    ${tab === "groups" ? html`<${Groups} />` : tab === "roles" ? html`<${Roles} />` : tab === "pools" ? html`<${PoolAccess} />` : tab === "policies" ? html`<${Policies} of="global" where="of the cluster" canChange />` : tab === "logs" ? html`<${LogRetention} />` : tab === "imports" ? html`<${Imports} />` : tab === "tokens" ? html`<${Tokens} />` : tab === "message" ? html`<${Message} />` : tab === "audit" ? html`<${Audit} />` : html`<${Users} />`}</div>`;
}

function Users() {
  const [name, setName] = useQuery("name");
  const list = useGet(`users${query({ limit: 200, name })}`);
  const [open, setOpen] = useState(/** @type {any} */ (null));
  const change = (/** @type {any} */ user, /** @type {any} */ what) => async () => {
    await patch(`users/${user.id}`, what);
    list.reload();
  };
  return html`<div class="stack"><div class="row spread"><${Search} label="filter by name" value=${name} onChange=${setName} /><button class="first" onClick=${() => setOpen("new")}>New user</button></div>
    <${Load} of=${list}>${(/** @type {any} */ { users }) => html`<${Table} label="users" rows=${users} id=${(/** @type {any} */ u) => u.id} columns=${[
      { key: "name", title: "User", cell: (/** @type {any} */ u) => u.username }, { key: "display", title: "Shown as", cell: (/** @type {any} */ u) => u.displayName || "–" },
      { key: "admin", title: "Administrator", cell: (/** @type {any} */ u) => (u.admin ? "yes" : "no") }, { key: "active", title: "Active", cell: (/** @type {any} */ u) => (u.active ? "yes" : "no") },
      { key: "remote", title: "Remote", hint: "has no password here", cell: (/** @type {any} */ u) => (u.remote ? "yes" : "no") },
      { key: "last", title: "Last login", cell: (/** @type {any} */ u) => html`<${When} at=${u.lastAuthAt} />` },
      { key: "do", title: "", cell: (/** @type {any} */ u) => html`<div class="row tight nowrap"><${EditUser} user=${u} change=${change} /><button class="small" onClick=${() => setOpen(u)}>Password</button>
        <${Confirm} kind="small" label=${u.admin ? "No administrator" : "Administrator"} title="${u.admin ? "Take" : "Give"} ${u.username} all rights?" confirm="Change" run=${change(u, { admin: !u.admin })}><p>${u.admin ? "The user keeps their roles in workspaces." : "An administrator sees and changes everything in this cluster."}</p></${Confirm}>
        <${Confirm} kind="small ${u.active ? "danger" : ""}" label=${u.active ? "Deactivate" : "Activate"} title="${u.active ? "Deactivate" : "Activate"} ${u.username}?" confirm="Change" run=${change(u, { active: !u.active })}><p>${u.active ? "Sessions and access tokens of the user end. Their experiments go on." : "The user can log in again."}</p></${Confirm}></div>` },
    ]} />`}</${Load}>${open && html`<${UserDialog} user=${open === "new" ? null : open} onClose=${() => setOpen(null)} reload=${list.reload} />`}</div>`;
}

/** @param {{user: any, change: (user: any, what: any) => () => Promise<any>}} props */
function EditUser({ user, change }) {
  const group = user.agentUserGroup ?? {};
  const owner = ["agentUid", "agentUser", "agentGid", "agentGroup"];
  const run = (/** @type {any} */ given) => {
    const sent = Object.fromEntries(Object.entries(given).filter(([key]) => !owner.includes(key)));
    // The four belong together: what was not touched is sent with the others.
    if (owner.some((key) => key in given)) sent.agentUserGroup = Object.fromEntries(owner.map((key) => [key, key in given ? given[key] : group[key] ?? null]));
    return change(user, sent)();
  };
  return html`<${FormButton} key=${JSON.stringify(user)} kind="small" label="Edit" about="edit ${user.username}" title="User ${user.username}" run=${run} fields=${[
    { key: "username", label: "Name to log in with", value: user.username, required: true }, { key: "displayName", label: "Shown as", value: user.displayName }, { key: "remote", label: "has no password here", type: "check", value: user.remote },
    { key: "agentUser", label: "Tasks run on the hosts as user", value: group.agentUser }, { key: "agentUid", label: "with the user id", type: "number", min: 0, value: group.agentUid }, { key: "agentGroup", label: "in the group", value: group.agentGroup }, { key: "agentGid", label: "with the group id", type: "number", min: 0, value: group.agentGid }]} />`;
}

/** @param {{user: any, onClose: () => void, reload: () => void}} props */
function UserDialog({ user, onClose, reload }) {
  const run = async (/** @type {any} */ { password, remote, ...given }) => {
    if (!remote && !password) throw new Error("password: expected one for a user who logs in here");
    const secret = remote ? {} : { password, isHashed: false };
    if (user) await patch(`users/${user.id}`, secret);
    else await post("users", { user: { ...given, active: true, remote }, ...secret });
    reload();
  };
  const password = { key: "password", label: "Password", type: "password" };
  return html`<${Form} title=${user ? `Password of ${user.username}` : "New user"} onClose=${onClose} whole run=${run} fields=${user ? [{ ...password, required: true }] : [{ key: "username", label: "Name", required: true }, { key: "admin", label: "an administrator, who sees and changes everything", type: "check" }, { key: "remote", label: "has no password here", type: "check" }, password]}>
    ${user && html`<p class="muted">Sessions and access tokens of the user end.</p>`}</${Form}>`;
}

function Groups() {
  const [list, setList] = useState(/** @type {any} */ (null));
  const [open, setOpen] = useState(false);
  const [chosen] = useQuery("group");
  const load = () => post("groups/search", { limit: 500 }).then((data) => setList({ data }), (error) => setList({ error }));
  if (list === null) {
    setList({});
    load();
  }
  return html`<div class="stack"><div class="row"><button class="first" onClick=${() => setOpen(true)}>New group</button></div>${open && html`<${Form} title="New group" onClose=${() => setOpen(false)} fields=${[{ key: "name", label: "Name", required: true }]} run=${async (/** @type {any} */ given) => { await post("groups", given); load(); }} />`}
    <${Load} of=${{ ...list, reload: load }}>${(/** @type {any} */ { groups }) => html`<${Table} label="groups" rows=${groups} id=${(/** @type {any} */ g) => g.group.groupId} columns=${[{ key: "name", title: "Group", cell: (/** @type {any} */ g) => html`<a href="/det/admin/groups?group=${g.group.groupId}" aria-current=${String(g.group.groupId) === chosen ? "true" : null}>${g.group.name}</a>` }, { key: "n", title: "Members", num: true, cell: (/** @type {any} */ g) => g.numMembers },
      { key: "do", title: "", cell: (/** @type {any} */ g) => html`<${Confirm} kind="small danger" label="Delete" title="Delete group ${g.group.name}?" confirm="Delete" run=${async () => { await remove(`groups/${g.group.groupId}`); load(); }}><p>Its ${g.numMembers} members lose the roles that they have by it.</p></${Confirm}>` }]} empty=${html`<${Empty} title="No groups yet"></${Empty}>`} />
      ${groups.some((/** @type {any} */ g) => String(g.group.groupId) === chosen) && html`<${GroupMembers} key=${chosen} id=${chosen} onChange=${load} />`}`}</${Load}></div>`;
}

function Tokens() {
  const list = useGet("tokens?limit=200&showInactive=false");
  return html`<${Load} of=${list}>${(/** @type {any} */ { tokenInfo }) => html`<${Table} label="access tokens" rows=${tokenInfo} id=${(/** @type {any} */ t) => t.id} columns=${[
    { key: "id", title: "Token", num: true, cell: (/** @type {any} */ t) => t.id }, { key: "user", title: "User", cell: (/** @type {any} */ t) => html`${t.username} <span class="muted">${t.userId}</span>` }, { key: "text", title: "Description", cell: (/** @type {any} */ t) => t.description || "–" }, { key: "scope", title: "For", cell: (/** @type {any} */ t) => (t.scope === "read-only" ? "reading only" : "everything") },
    { key: "made", title: "Made", cell: (/** @type {any} */ t) => html`<${When} at=${t.createdAt} />` }, { key: "ends", title: "Ends", cell: (/** @type {any} */ t) => exact(t.expiry) },
    { key: "do", title: "", cell: (/** @type {any} */ t) => html`<div class="row tight nowrap"><${DescribeToken} token=${t} reload=${list.reload} /><${TokenBudget} token=${t} /><${Confirm} kind="small danger" label="Revoke" title="Revoke token ${t.id}?" confirm="Revoke" run=${async () => { await patch(`tokens/${t.id}`, { tokenId: t.id, setRevoked: true }); list.reload(); }}><p>Programs that use it are refused from now on.</p></${Confirm}></div>` }]} empty=${html`<${Empty} title="No access tokens"><code>det token create</code></${Empty}>`} />`}</${Load}>`;
}

function Message() {
  const one = useGet("master/cluster_message");
  const [text, setText] = useState(/** @type {string | null} */ (null));
  const [from, setFrom] = useState("");
  const [until, setUntil] = useState("");
  const time = (/** @type {string} */ name, /** @type {string} */ label, /** @type {string} */ value, /** @type {(text: string) => void} */ set) => html`<${Field} label=${label} name=${name}><input type="datetime-local" value=${value} onInput=${typed(set)} /></${Field}>`;
  return html`<${Load} of=${one}>${(/** @type {any} */ data) => html`<${Asks}><p class="muted">All who use the cluster see it, here and in <code>det</code>.</p><${Field} label="Message" name="message"><input value=${text ?? data.clusterMessage?.message ?? ""} onInput=${typed(setText)} /></${Field}>
    <div class="row">${time("startTime", "From; empty: now", from, setFrom)}${time("endTime", "Until; empty: until you take it back", until, setUntil)}</div>
    ${data.clusterMessage && html`<p class="muted">Now: from ${exact(data.clusterMessage.startTime)}${data.clusterMessage.endTime ? ` until ${exact(data.clusterMessage.endTime)}` : ""}.</p>`}
    <div class="row actions"><${Do} kind="first" disabled=${!(text ?? data.clusterMessage?.message)} run=${async () => { await put("master/cluster_message", { message: text ?? data.clusterMessage?.message, startTime: (from ? new Date(from) : new Date()).toISOString(), ...(until ? { endTime: new Date(until).toISOString() } : {}) }); one.reload(); }} done="Said">Say it</${Do}><${Do} run=${async () => { await remove("master/cluster_message"); setText(null); one.reload(); }} done="Taken back">Take it back</${Do}></div></${Asks}>`}</${Load}>`;
}

function Audit() {
  const list = useGet("undeterred/audit?limit=200");
  return html`<${Load} of=${list}>${(/** @type {any} */ data) => html`<${Table} label="audit log" rows=${data.entries} id=${(/** @type {any} */ a) => a.number} columns=${[
    { key: "n", title: "Entry", num: true, cell: (/** @type {any} */ a) => a.number }, { key: "time", title: "When", cell: (/** @type {any} */ a) => html`<${When} at=${a.at} />` }, { key: "who", title: "Who", cell: (/** @type {any} */ a) => a.actor }, { key: "what", title: "What", cell: (/** @type {any} */ a) => html`<code>${a.method} ${a.target}</code>` },
    { key: "fields", title: "Fields", wrap: true, cell: (/** @type {any} */ a) => (a.fields ?? []).join(", ") }, { key: "from", title: "From", cell: (/** @type {any} */ a) => a.address }]} empty=${html`<${Empty} title="Nothing was changed yet"></${Empty}>`} />`}</${Load}>`;
}
