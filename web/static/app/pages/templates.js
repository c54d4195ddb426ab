// Templates: parts of configurations that several experiments and tasks share.
import { html, useState } from "../html.js";
import { call, remove } from "../api.js";
import { useGet } from "../data.js";
import { Form } from "../form.js";
import { may, session } from "../session.js";
import { Confirm, Empty, Head, Load, Table } from "../ui.js";

export function Templates() {
  const list = useGet("templates?limit=500");
  const [open, setOpen] = useState(/** @type {any} */ (null));
  const workspaces = useGet("workspaces?limit=500&sortBy=SORT_BY_ID");
  const places = (workspaces.data?.workspaces ?? []).filter((/** @type {any} */ w) => !w.archived && may("CREATE_EXPERIMENT", w.id));
  const canChange = (/** @type {any} */ t) => t.userId === session()?.user.id || may("UPDATE_EXPERIMENT", t.workspaceId);
  return html`<div class="stack"><${Head} title="Templates">${places.length > 0 && html`<button class="first" onClick=${() => setOpen({ name: "", config: {}, workspaceId: places[0].id })}>New template</button>`}</${Head}>
    <${Load} of=${list}>${(/** @type {any} */ { templates }) => html`<${Table} label="templates" rows=${templates} id=${(/** @type {any} */ t) => t.name} columns=${[
      { key: "name", title: "Name", cell: (/** @type {any} */ t) => t.name }, { key: "config", title: "Sets", wrap: true, cell: (/** @type {any} */ t) => html`<code>${Object.keys(t.config ?? {}).join(", ")}</code>` },
      { key: "do", title: "", cell: (/** @type {any} */ t) => canChange(t) && html`<div class="row tight"><button class="small" onClick=${() => setOpen(t)}>Edit</button><${Confirm} kind="small danger" label="Delete" title="Delete template ${t.name}?" confirm="Delete" run=${async () => { await remove(`templates/${encodeURIComponent(t.name)}`); list.reload(); }}><p>What was created from it keeps its configuration.</p></${Confirm}></div>` },
    ]} empty=${html`<${Empty} title="No templates yet"><code>det template set NAME FILE</code></${Empty}>`} />`}</${Load}>
    ${open && html`<${Edit} template=${open} onClose=${() => setOpen(null)} reload=${list.reload} />`}</div>`;
}

/** @param {{template: any, onClose: () => void, reload: () => void}} props */
const Edit = ({ template, onClose, reload }) => html`<${Form} title=${template.name ? `Template ${template.name}` : "New template"} onClose=${onClose} wide whole fields=${[
    ...(template.name ? [] : [{ key: "name", label: "Name", required: true }]), { key: "config", label: "Configuration, as JSON", type: "json", rows: 16, value: template.config }]}
  run=${async (/** @type {any} */ { name = template.name, config }) => { await call("PUT", `/api/v1/templates/${encodeURIComponent(name)}`, { name, config, workspaceId: template.workspaceId }); reload(); }} />`;
