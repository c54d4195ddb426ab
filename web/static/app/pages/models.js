// The model registry: models and their versions.
import { html } from "../html.js";
import { patch, post, query, remove } from "../api.js";
import { useGet } from "../data.js";
import { bytes, many } from "../format.js";
import { go, useQuery } from "../router.js";
import { Confirm, Do, Empty, Head, Load, Search, Table, When } from "../ui.js";
import { FormButton } from "../form.js";
import { may, session } from "../session.js";

export function Models() {
  return html`<div class="stack"><${Head} title="Models" /><${ModelList} /></div>`;
}

/** Models, of one workspace or of all. @param {{workspaceId?: number}} props */
export function ModelList({ workspaceId }) {
  const [name, setName] = useQuery("name");
  const [archived, setArchived] = useQuery("archived");
  const list = useGet(`models${query({ limit: 200, name, workspaceIds: workspaceId, archived: archived ? undefined : false, orderBy: "ORDER_BY_DESC", sortBy: "SORT_BY_LAST_UPDATED_TIME" })}`);
  return html`<div class="stack"><div class="row spread"><div class="row"><${Search} label="filter by name" value=${name} onChange=${setName} /><label class="row tight"><input type="checkbox" checked=${Boolean(archived)} onChange=${(/** @type {any} */ event) => setArchived(event.target.checked ? "1" : "")} />archived too</label></div><${NewModel} workspaceId=${workspaceId} reload=${list.reload} /></div>
    <${Load} of=${list}>${(/** @type {any} */ { models }) => html`<${Table} label="models" rows=${models} id=${(/** @type {any} */ m) => m.id} columns=${[
      { key: "name", title: "Name", cell: (/** @type {any} */ m) => html`<a href="/det/models/${encodeURIComponent(m.name)}">${m.name}</a>${m.archived ? html` <span class="tag">archived</span>` : ""}${(m.labels ?? []).map((/** @type {string} */ label) => html` <span class="tag" key=${label}>${label}</span>`)}` },
      { key: "versions", title: "Versions", num: true, cell: (/** @type {any} */ m) => m.numVersions }, { key: "user", title: "Owner", cell: (/** @type {any} */ m) => m.username },
      { key: "updated", title: "Changed", cell: (/** @type {any} */ m) => html`<${When} at=${m.lastUpdatedTime} />` }, { key: "description", title: "Description", wrap: true, cell: (/** @type {any} */ m) => m.description },
    ]} empty=${html`<${Empty} title="No models yet"><p>A model collects checkpoints as versions: register one from the checkpoints of an experiment.</p></${Empty}>`} />`}</${Load}></div>`;
}

/** @param {{workspaceId?: number, reload: () => void}} props */
function NewModel({ workspaceId, reload }) {
  const workspaces = useGet("workspaces?limit=500&sortBy=SORT_BY_ID");
  const open = (workspaces.data?.workspaces ?? []).filter((/** @type {any} */ w) => !w.archived && (!workspaceId || w.id === workspaceId) && may("CREATE_MODEL_REGISTRY", w.id));
  if (!open.length) return null;
  return html`<${FormButton} label="New model" kind="first" title="New model" whole done="Created" confirm="Create" fields=${[{ key: "name", label: "Name", required: true }, { key: "description", label: "Description" }, { key: "labels", label: "Labels, one a line", type: "lines", value: [] },
      { key: "workspace", label: "Workspace", type: "choice", value: String(open[0].id), options: open.map((/** @type {any} */ w) => [String(w.id), w.name]) }]}
    run=${async (/** @type {any} */ { workspace, ...given }) => { await post("models", { ...given, workspaceId: Number(workspace) }); reload(); }} />`;
}

/** @param {any} model */
const canChange = (model) => model.userId === session()?.user.id || may("EDIT_MODEL_REGISTRY", model.workspaceId);

/** @param {{path: string, model: any, reload: () => void}} props */
function MoveModel({ path, model, reload }) {
  const workspaces = useGet("workspaces?limit=500");
  const targets = (workspaces.data?.workspaces ?? []).filter((/** @type {any} */ w) => w.id !== model.workspaceId && !w.archived && may("CREATE_MODEL_REGISTRY", w.id));
  if (!targets.length) return null;
  return html`<${FormButton} label="Move" title="Move model ${model.name}" confirm="Move" done="Moved" whole fields=${[{ key: "to", label: "Workspace", type: "choice", value: String(targets[0].id), options: targets.map((/** @type {any} */ w) => [String(w.id), w.name]) }]}
    run=${async (/** @type {any} */ { to }) => { await post(`${path}/move`, { destinationWorkspaceId: Number(to) }); reload(); }} />`;
}

/** @param {{name: string}} props */
export function ModelPage({ name }) {
  const path = `models/${encodeURIComponent(name)}`;
  const one = useGet(path);
  const versions = useGet(`${path}/versions?limit=500&orderBy=ORDER_BY_DESC`);
  return html`<${Load} of=${one} page>${(/** @type {any} */ { model }) => html`<div class="stack"><${Head} title=${model.name} crumbs=${[["Models", "/det/models"]]} below=${html`<p class="muted">${model.description} ${many(model.numVersions, "version")}, by ${model.username}</p>`}>
      ${canChange(model) && html`${!model.archived && html`<${FormButton} label="Edit" title="Model ${model.name}" fields=${[{ key: "name", label: "Name", value: model.name, required: true }, { key: "description", label: "Description", type: "area", value: model.description }, { key: "labels", label: "Labels, one a line", type: "lines", value: model.labels ?? [] }]}
        run=${async (/** @type {any} */ given) => { await patch(path, given); if (given.name) go(`/det/models/${encodeURIComponent(given.name)}`); else one.reload(); }} />
      <${MoveModel} path=${path} model=${model} reload=${one.reload} />`}
      <${Do} run=${async () => { await post(`${path}/${model.archived ? "unarchive" : "archive"}`, { modelName: name }); one.reload(); }}>${model.archived ? "Unarchive" : "Archive"}</${Do}>
      <${Confirm} label="Delete" title="Delete model ${model.name}?" confirm="Delete" run=${async () => { await remove(path); go("/det/models"); }}><p>Its ${many(model.numVersions, "version")} go from the registry. The checkpoints stay where they are.</p></${Confirm}>`}</${Head}>
    <${Load} of=${versions}>${(/** @type {any} */ { modelVersions }) => html`<${Table} label="versions" rows=${modelVersions} id=${(/** @type {any} */ v) => v.version} columns=${[
      { key: "version", title: "Version", num: true, cell: (/** @type {any} */ v) => v.version }, { key: "name", title: "Name", cell: (/** @type {any} */ v) => v.name || "–" },
      { key: "checkpoint", title: "Checkpoint", cell: (/** @type {any} */ v) => html`<code>${v.checkpoint?.uuid}</code>` },
      { key: "trial", title: "Trial", num: true, cell: (/** @type {any} */ v) => (v.checkpoint?.training?.trialId ? html`<a href="/det/trials/${v.checkpoint.training.trialId}">${v.checkpoint.training.trialId}</a>` : "–") },
      { key: "size", title: "Size", num: true, cell: (/** @type {any} */ v) => bytes(Object.values(v.checkpoint?.resources ?? {}).reduce((sum, size) => sum + Number(size), 0)) },
      { key: "time", title: "Registered", cell: (/** @type {any} */ v) => html`<${When} at=${v.creationTime} />` },
      { key: "do", title: "", cell: (/** @type {any} */ v) => canChange(model) && html`<${Confirm} kind="small danger" label="Delete" title="Delete version ${v.version} of ${model.name}?" confirm="Delete" run=${async () => { await remove(`${path}/versions/${v.version}`); versions.reload(); one.reload(); }}><p>The version goes from the registry; its checkpoint stays.</p></${Confirm}>` },
    ]} empty=${html`<${Empty} title="No version yet"></${Empty}>`} />`}</${Load}></div>`}</${Load}>`;
}
