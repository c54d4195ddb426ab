// Webhooks: where events are sent, and what was delivered.
import { html, useState } from "../html.js";
import { post, remove } from "../api.js";
import { useGet } from "../data.js";
import { Confirm, Dialog, Do, Empty, Head, Load, Table, When } from "../ui.js";

const TRIGGERS = [["COMPLETED", "an experiment completes"], ["ERROR", "an experiment fails"], ["CANCELED", "an experiment is canceled"]];

export function Webhooks() {
  const list = useGet("webhooks");
  const [open, setOpen] = useState(/** @type {any} */ (null));
  return html`<div class="stack"><${Head} title="Webhooks"><button class="first" onClick=${() => setOpen("new")}>New webhook</button></${Head}>
    <${Load} of=${list}>${(/** @type {any} */ { webhooks }) => html`<${Table} label="webhooks" rows=${webhooks} id=${(/** @type {any} */ w) => w.id} columns=${[
      { key: "name", title: "Name", cell: (/** @type {any} */ w) => w.name || w.id }, { key: "url", title: "Address", cell: (/** @type {any} */ w) => html`<span title=${w.url}>${w.url}</span>` },
      { key: "type", title: "Kind", cell: (/** @type {any} */ w) => w.webhookType?.replace("WEBHOOK_TYPE_", "").toLowerCase() },
      { key: "on", title: "When", wrap: true, cell: (/** @type {any} */ w) => (w.triggers ?? []).map((/** @type {any} */ t) => [t.triggerType?.replace("TRIGGER_TYPE_", "").toLowerCase().replaceAll("_", " "), ...Object.values(t.condition ?? {})].join(" ")).join("; ") },
      { key: "do", title: "", cell: (/** @type {any} */ w) => html`<div class="row tight"><button class="small" onClick=${() => setOpen(w)}>Deliveries</button><${Do} kind="small" run=${() => post(`webhooks/${w.id}/test`)} done="A test event is on its way">Test</${Do}>
        <${Confirm} kind="small danger" label="Delete" title="Delete webhook ${w.name || w.id}?" confirm="Delete" run=${async () => { await remove(`webhooks/${w.id}`); list.reload(); }}><p>Nothing is sent to ${w.url} any more.</p></${Confirm}></div>` },
    ]} empty=${html`<${Empty} title="No webhooks yet"><p>A webhook sends a message when an experiment ends, a log line matches, or code asks for it.</p></${Empty}>`} />`}</${Load}>
    ${open === "new" && html`<${New} onClose=${() => setOpen(null)} reload=${list.reload} />`}${open && open !== "new" && html`<${Deliveries} webhook=${open} onClose=${() => setOpen(null)} />`}</div>`;
}

/** @param {{onClose: () => void, reload: () => void}} props */
function New({ onClose, reload }) {
  const [form, setForm] = useState(/** @type {any} */ ({ name: "", url: "", type: "DEFAULT", workspace: "", states: new Set(["COMPLETED", "ERROR"]) }));
  const workspaces = useGet("workspaces?limit=500");
  const set = (/** @type {string} */ key) => (/** @type {any} */ event) => setForm({ ...form, [key]: event.target.value });
  const run = async () => {
    await post("webhooks", { name: form.name, url: form.url, webhookType: `WEBHOOK_TYPE_${form.type}`, workspaceId: form.workspace ? Number(form.workspace) : undefined, mode: "WEBHOOK_MODE_WORKSPACE",
      triggers: [...form.states].map((state) => ({ triggerType: "TRIGGER_TYPE_EXPERIMENT_STATE_CHANGE", condition: { state } })) });
    onClose();
    reload();
  };
  return html`<${Dialog} title="New webhook" onClose=${onClose}><label class="field">Name<input value=${form.name} onInput=${set("name")} /></label><label class="field">Address<input type="url" placeholder="https://…" value=${form.url} onInput=${set("url")} /></label>
    <div class="row"><label class="field">Kind<select value=${form.type} onChange=${set("type")}><option value="DEFAULT">signed JSON</option><option value="SLACK">Slack</option></select></label>
      <label class="field">Workspace<select value=${form.workspace} onChange=${set("workspace")}><option value="">all</option>${(workspaces.data?.workspaces ?? []).map((/** @type {any} */ w) => html`<option key=${w.id} value=${w.id}>${w.name}</option>`)}</select></label></div>
    <fieldset><legend>When</legend>${TRIGGERS.map(([state, text]) => html`<label class="row tight" key=${state}><input type="checkbox" checked=${form.states.has(state)} onChange=${() => { const states = new Set(form.states); if (!states.delete(state)) states.add(state); setForm({ ...form, states }); }} />${text}</label>`)}</fieldset>
    <div class="actions"><button onClick=${onClose}>Leave it</button><${Do} kind="first" disabled=${!form.url || !form.states.size} run=${run} done="Created">Create</${Do}></div></${Dialog}>`;
}

/** @param {{webhook: any, onClose: () => void}} props */
function Deliveries({ webhook, onClose }) {
  const list = useGet(`undeterred/webhooks/${webhook.id}/deliveries`);
  return html`<${Dialog} title="Deliveries of ${webhook.name || webhook.id}" onClose=${onClose} wide><${Load} of=${list}>${(/** @type {any} */ data) => html`<${Table} label="deliveries" rows=${data.deliveries ?? []} id=${(/** @type {any} */ d) => d.id} columns=${[
    { key: "time", title: "When", cell: (/** @type {any} */ d) => html`<${When} at=${d.createdAt ?? d.time} />` }, { key: "event", title: "Event", cell: (/** @type {any} */ d) => d.eventType ?? d.event ?? d.kind }, { key: "state", title: "State", cell: (/** @type {any} */ d) => d.state ?? (d.deliveredAt ? "delivered" : "waits") },
    { key: "attempts", title: "Attempts", num: true, cell: (/** @type {any} */ d) => d.attempts }, { key: "error", title: "Last error", wrap: true, cell: (/** @type {any} */ d) => d.error ?? d.lastError ?? "" }]} empty=${html`<${Empty} title="Nothing was sent yet"></${Empty}>`} />`}</${Load}></${Dialog}>`;
}
