// Your own account: password, access tokens, log out.
import { html, useState } from "../html.js";
import { patch } from "../api.js";
import { useGet } from "../data.js";
import { Field, typed } from "../form.js";
import { exact } from "../format.js";
import { go } from "../router.js";
import { logout, session } from "../session.js";
import { DescribeToken, NewToken, TokenBudget } from "../tokens.js";
import { Asks, Confirm, Do, Empty, Head, Load, Table, When } from "../ui.js";

export function Account() {
  const user = session()?.user;
  const tokens = useGet(`tokens?limit=100&userIds=${user.id}`);
  const [password, setPassword] = useState("");
  return html`<div class="stack"><${Head} title=${user.displayName || user.username}><${Do} run=${async () => { await logout(); go("/det/login"); location.reload(); }}>Log out</${Do}></${Head}>
    <section class="card"><${Asks}><h2>Password</h2><${Field} label="New password" name="password"><input type="password" autocomplete="new-password" value=${password} onInput=${typed(setPassword)} /></${Field}>
      <div class="row actions"><${Do} disabled=${!password} run=${async () => { await patch(`users/${user.id}`, { password, isHashed: false }); setPassword(""); }} done="Your password is changed">Change it</${Do}></div></${Asks}></section>
    <section class="card stack"><h2>Access tokens</h2><p class="muted">For programs: <code>DET_USER_TOKEN</code>. A token is shown once.</p>
      <${NewToken} userId=${user.id} reload=${tokens.reload} />
      <${Load} of=${tokens}>${(/** @type {any} */ { tokenInfo }) => html`<${Table} label="your access tokens" rows=${tokenInfo} id=${(/** @type {any} */ t) => t.id} columns=${[{ key: "text", title: "Description", cell: (/** @type {any} */ t) => t.description || t.id }, { key: "made", title: "Made", cell: (/** @type {any} */ t) => html`<${When} at=${t.createdAt} />` }, { key: "ends", title: "Ends", cell: (/** @type {any} */ t) => exact(t.expiry) },
        { key: "do", title: "", cell: (/** @type {any} */ t) => html`<div class="row tight nowrap"><${DescribeToken} token=${t} reload=${tokens.reload} /><${TokenBudget} token=${t} /><${Confirm} kind="small danger" label="Revoke" title="Revoke this token?" confirm="Revoke" run=${async () => { await patch(`tokens/${t.id}`, { tokenId: t.id, setRevoked: true }); tokens.reload(); }}><p>Programs that use it are refused from now on.</p></${Confirm}></div>` }]} empty=${html`<${Empty} title="No access tokens"></${Empty}>`} />`}</${Load}></section></div>`;
}
