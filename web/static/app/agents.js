// For administrators: slots of agents, agents that are removed, and the tokens by which hosts join.
import { html, useState } from "./html.js";
import { post, query, remove } from "./api.js";
import { useGet } from "./data.js";
import { exact, many } from "./format.js";
import { FormButton } from "./form.js";
import { Confirm, Dialog, Do, Empty, Load, Table, When } from "./ui.js";

/** Each slot of an agent in or out of service. @param {{agent: any, reload: () => void}} props */
export function Slots({ agent, reload }) {
  const [open, setOpen] = useState(false);
  return html`<button class="small" aria-label="slots of ${agent.id}" onClick=${() => setOpen(true)}>Slots</button>${open && html`<${Each} agent=${agent} onClose=${() => setOpen(false)} reload=${reload} />`}`;
}

/** @param {{agent: any, onClose: () => void, reload: () => void}} props */
function Each({ agent, onClose, reload }) {
  const rows = Object.values(agent.slots).sort((/** @type {any} */ a, /** @type {any} */ b) => Number(a.id) - Number(b.id));
  const set = (/** @type {any} */ slot, /** @type {string} */ word, /** @type {any} */ body) => async () => {
    await post(`agents/${encodeURIComponent(agent.id)}/slots/${slot.id}/${word}`, body);
    reload();
  };
  return html`<${Dialog} title="Slots of ${agent.id}" onClose=${onClose} wide><${Table} label="slots of the agent" rows=${rows} id=${(/** @type {any} */ s) => s.id} columns=${[
    { key: "id", title: "Slot", num: true, cell: (/** @type {any} */ s) => s.id }, { key: "device", title: "Device", cell: (/** @type {any} */ s) => s.device?.brand || s.device?.type?.replace("TYPE_", "") },
    { key: "use", title: "In use by", cell: (/** @type {any} */ s) => s.container?.parent ?? "–" }, { key: "is", title: "Takes work", cell: (/** @type {any} */ s) => (s.draining ? "draining" : s.enabled ? "yes" : "no") },
    { key: "do", title: "", cell: (/** @type {any} */ s) => (s.enabled && !s.draining ? html`<div class="row tight">${s.container && html`<${Do} kind="small" title="no new work; what runs goes on" run=${set(s, "disable", { drain: true })}>Drain</${Do}>`}
      ${s.container ? html`<${Confirm} kind="small danger" label="Disable" title="Disable slot ${s.id} of ${agent.id}?" confirm="Disable" run=${set(s, "disable", {})}><p>${s.container.parent} leaves it, a trial after a checkpoint, and goes on elsewhere.</p></${Confirm}>` : html`<${Do} kind="small" run=${set(s, "disable", {})}>Disable</${Do}>`}</div>` : html`<${Do} kind="small" run=${set(s, "enable", {})}>Enable</${Do}>`) }]} /></${Dialog}>`;
}

/** An agent that takes no work may go for good. @param {{agent: any, reload: () => void}} props */
export const RemoveAgent = ({ agent, reload }) => html`<${Confirm} kind="small danger" label="Remove" title="Remove agent ${agent.id}?" confirm="Remove" done="Removed"
  run=${async () => { await remove(`undeterred/agents/${encodeURIComponent(agent.id)}${query({ force: true })}`); reload(); }}><p>Its credential is revoked: the host has to join again. Its ${many(Object.keys(agent.containers ?? {}).length, "container")} end; trials resume elsewhere from their last checkpoints.</p></${Confirm}>`;

export function JoinTokens() {
  const list = useGet("undeterred/agent-join-tokens?limit=100");
  const pools = useGet("resource-pools");
  const [made, setMade] = useState("");
  const run = async (/** @type {any} */ given) => {
    const { token, authorityFingerprint } = await post("undeterred/agent-join-tokens", given);
    setMade(authorityFingerprint ? `${token} --trust ${authorityFingerprint}` : token);
    list.reload();
  };
  return html`<section class="stack tight" aria-label="how hosts join"><div class="row spread"><h2>Join tokens</h2><${FormButton} label="New join token" title="New join token" confirm="Create" done="Created" whole run=${run} fields=${[
      { key: "pool", label: "Pool", type: "choice", value: "", options: [["", "the default one"], ...(pools.data?.resourcePools ?? []).map((/** @type {any} */ p) => [p.name, p.name])] }, { key: "uses", label: "Number of hosts; empty: any", type: "number", min: 1 },
      { key: "lifespan", label: "Valid for; -1: it never expires", value: "24h", required: true }, { key: "description", label: "Description" }]} /></div>
    <p class="muted">A host becomes an agent by one.</p>
    ${made && html`<div class="card stack tight"><p>It is shown once. On the new host:</p><pre class="code" tabindex="0">det -m ${location.origin} agent run --join-token ${made}</pre></div>`}
    <${Load} of=${list}>${(/** @type {any} */ { tokens }) => html`<${Table} label="join tokens" rows=${tokens} id=${(/** @type {any} */ t) => t.id} columns=${[
      { key: "id", title: "Token", num: true, cell: (/** @type {any} */ t) => t.id }, { key: "pool", title: "Pool", cell: (/** @type {any} */ t) => t.pool }, { key: "text", title: "Description", wrap: true, cell: (/** @type {any} */ t) => t.description || "–" },
      { key: "left", title: "Uses left", num: true, cell: (/** @type {any} */ t) => t.usesLeft ?? "any" }, { key: "by", title: "Made by", cell: (/** @type {any} */ t) => t.createdBy }, { key: "made", title: "Made", cell: (/** @type {any} */ t) => html`<${When} at=${t.createdAt} />` },
      { key: "ends", title: "Ends", cell: (/** @type {any} */ t) => (t.isRevoked ? "revoked" : t.expiresAt ? exact(t.expiresAt) : "never") },
      { key: "do", title: "", cell: (/** @type {any} */ t) => !t.isRevoked && html`<${Confirm} kind="small danger" label="Revoke" title="Revoke join token ${t.id}?" confirm="Revoke" run=${async () => { await remove(`undeterred/agent-join-tokens/${t.id}`); list.reload(); }}><p>No host joins by it any more. Hosts that did stay.</p></${Confirm}>` }]} empty=${html`<${Empty} title="No join tokens"></${Empty}>`} />`}</${Load}></section>`;
}
