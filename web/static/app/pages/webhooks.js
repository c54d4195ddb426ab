// Webhooks: where events are sent, and what was delivered.
import { html, useState } from "../html.js";
import { patch, post, remove } from "../api.js";
import { useGet } from "../data.js";
import { Form, FormButton } from "../form.js";
import { isAdmin, may } from "../session.js";
import { Confirm, Dialog, Do, Empty, Head, Load, Table, When, toast } from "../ui.js";

const TRIGGERS = [["COMPLETED", "an experiment completes"], ["ERROR", "an experiment fails"], ["CANCELED", "an experiment is canceled"]];

export function Webhooks() {
  const list = useGet("webhooks");
  const [open, setOpen] = useState(/** @type {any} */ (null));
  const [secret, setSecret] = useState("");
  const workspaces = useGet("workspaces?limit=500");
  // Of all workspaces for administrators, of one for its editors.
  const places = [...(isAdmin() ? [{ id: "", name: "all" }] : []), ...(workspaces.data?.workspaces ?? []).filter((/** @type {any} */ w) => !w.archived && may("UPDATE_EXPERIMENT", w.id))];
  return html`<div class="stack"><${Head} title="Webhooks">${places.length > 0 && html`<button class="first" onClick=${() => setOpen("new")}>New webhook</button>`}</${Head}>
    ${secret && html`<section class="card stack tight" aria-label="the secret"><p>Its events are signed with this secret, which is shown once:</p><pre class="code" tabindex="0">${secret}</pre></section>`}
    <${Load} of=${list}>${(/** @type {any} */ { webhooks }) => html`<${Table} label="webhooks" rows=${webhooks} id=${(/** @type {any} */ w) => w.id} columns=${[
      { key: "name", title: "Name", cell: (/** @type {any} */ w) => w.name || w.id }, { key: "url", title: "Address", cell: (/** @type {any} */ w) => html`<span title=${w.url}>${w.url}</span>` },
      { key: "type", title: "Kind", cell: (/** @type {any} */ w) => w.webhookType?.replace("WEBHOOK_TYPE_", "").toLowerCase() },
      { key: "on", title: "When", wrap: true, cell: (/** @type {any} */ w) => (w.triggers ?? []).map((/** @type {any} */ t) => [t.triggerType?.replace("TRIGGER_TYPE_", "").toLowerCase().replaceAll("_", " "), ...Object.values(t.condition ?? {})].join(" ")).join("; ") },
      { key: "do", title: "", cell: (/** @type {any} */ w) => html`<div class="row tight">${w.url && html`<button class="small" onClick=${() => setOpen(w)}>Deliveries</button>
        <${Do} kind="small" run=${async () => { const { completed, error } = await post(`webhooks/${w.id}/test`); toast(completed ? "The test event arrived" : `The test event did not arrive: ${error}`, !completed); }}>Test</${Do}>
        <${FormButton} key=${w.name + w.url} kind="small" label="Edit" about="edit webhook ${w.name || w.id}" title="Webhook ${w.name || w.id}" fields=${[{ key: "name", label: "Name", value: w.name }, { key: "url", label: "Address", type: "url", value: w.url, required: true }]} run=${async (/** @type {any} */ given) => { await patch(`webhooks/${w.id}`, given); list.reload(); }} />
        <${Confirm} kind="small danger" label="Delete" title="Delete webhook ${w.name || w.id}?" confirm="Delete" run=${async () => { await remove(`webhooks/${w.id}`); list.reload(); }}><p>Nothing is sent to ${w.url} any more; deliveries that wait are dropped.</p></${Confirm}>`}</div>` },
    ]} empty=${html`<${Empty} title="No webhooks yet"><p>A webhook sends a message when an experiment ends, a log line matches, or code asks for it.</p></${Empty}>`} />`}</${Load}>
    ${open === "new" && html`<${New} places=${places} onClose=${() => setOpen(null)} onMade=${(/** @type {string} */ made) => { setSecret(made); list.reload(); }} />`}${open && open !== "new" && html`<${Deliveries} webhook=${open} onClose=${() => setOpen(null)} />`}</div>`;
}

/** @param {{places: any[], onClose: () => void, onMade: (secret: string) => void}} props */
function New({ places, onClose, onMade }) {
  const run = async (/** @type {any} */ { type, mode, workspace, patterns, thresholds, custom, name, url, ...states }) => {
    const triggers = [...TRIGGERS.filter(([state]) => states[state]).map(([state]) => trigger("EXPERIMENT_STATE_CHANGE", { state })), ...patterns.map((/** @type {string} */ regex) => trigger("TASK_LOG", { regex })),
      ...thresholds.map(threshold), ...(custom ? [trigger("CUSTOM", {})] : [])];
    const { webhook } = await post("webhooks", { name, url, webhookType: `WEBHOOK_TYPE_${type}`, workspaceId: workspace ? Number(workspace) : undefined, mode: `WEBHOOK_MODE_${mode}`, triggers });
    onMade(type === "DEFAULT" ? webhook.secret : "");
  };
  return html`<${Form} title="New webhook" onClose=${onClose} confirm="Create" done="Created" whole run=${run} fields=${[
    { key: "name", label: "Name" }, { key: "url", label: "Address", type: "url", placeholder: "https://…", required: true }, { key: "type", at: "webhookType", label: "Kind", type: "choice", value: "DEFAULT", options: [["DEFAULT", "signed JSON"], ["SLACK", "Slack"]] },
    { key: "workspace", at: "workspaceId workspace", label: "Workspace", type: "choice", value: places[0].id, options: places.map((w) => [w.id, w.name]) }, { key: "mode", label: "Of", type: "choice", value: "WORKSPACE", options: [["WORKSPACE", "all experiments there"], ["SPECIFIC", "those whose configuration names it"]] },
    ...TRIGGERS.map(([key, text]) => ({ key, label: `When ${text}`, type: "check", value: key !== "CANCELED" })), { key: "custom", label: "When training code asks for it", type: "check" },
    { key: "patterns", at: "triggers.condition.regex", label: "When a line of a log matches one of these patterns", type: "lines", value: [], placeholder: "CUDA out of memory" },
    { key: "thresholds", at: "triggers.condition.metric triggers.condition.value", label: "When a validation metric of a trial crosses a threshold", type: "lines", value: [], placeholder: "accuracy >= 0.9" }]} />`;
}

/** @param {string} kind @param {any} condition */
const trigger = (kind, condition) => ({ triggerType: `TRIGGER_TYPE_${kind}`, condition });

/** As `det webhook create --metric` reads it. @param {string} text */
export function threshold(text) {
  const found = /^(.+?)\s*(>=|<=|>|<)\s*(\S+)$/.exec(text.trim());
  const value = found ? Number(found[3]) : NaN;
  if (!found || !Number.isFinite(value)) throw new Error(`triggers.condition.metric: ${text}: expected a metric, one of > >= < <=, and a number`);
  return trigger("METRIC_THRESHOLD_EXCEEDED", { metric: found[1], operator: found[2], value });
}

/** @param {{webhook: any, onClose: () => void}} props */
function Deliveries({ webhook, onClose }) {
  const list = useGet(`undeterred/webhooks/${webhook.id}/deliveries`);
  return html`<${Dialog} title="Deliveries of ${webhook.name || webhook.id}" onClose=${onClose} wide><${Load} of=${list}>${(/** @type {any} */ data) => html`<${Table} label="deliveries" rows=${data.deliveries ?? []} id=${(/** @type {any} */ d) => d.id} columns=${[
    { key: "time", title: "When", cell: (/** @type {any} */ d) => html`<${When} at=${d.createdAt ?? d.time} />` }, { key: "event", title: "Event", cell: (/** @type {any} */ d) => d.eventType ?? d.event ?? d.kind }, { key: "state", title: "State", cell: (/** @type {any} */ d) => d.state ?? (d.deliveredAt ? "delivered" : "waits") },
    { key: "attempts", title: "Attempts", num: true, cell: (/** @type {any} */ d) => d.attempts }, { key: "error", title: "Last error", wrap: true, cell: (/** @type {any} */ d) => d.error ?? d.lastError ?? "" }]} empty=${html`<${Empty} title="Nothing was sent yet"></${Empty}>`} />`}</${Load}></${Dialog}>`;
}
