// What is seldom done with an experiment: describe it, move it, change what is kept of it, delete it.
import { html, useState } from "./html.js";
import { patch, post, put, query, remove } from "./api.js";
import { useGet, useRested } from "./data.js";
import { isOver } from "./experiments.js";
import { Field, FormButton, Pick, typed } from "./form.js";
import { bytes, many } from "./format.js";
import { go } from "./router.js";
import { Band, Confirm, Dialog, Do, Load, Table } from "./ui.js";

const MOST_SHOWN = 20;

/** The rest of the menu of an experiment that the user may change. @param {{e: any, reload: () => void}} props */
export function More({ e, reload }) {
  const [dialog, setDialog] = useState("");
  const close = () => setDialog("");
  const storage = e.config.checkpoint_storage ?? {};
  return html`<div>
    <${FormButton} label="Name, labels, description" title="Name, labels and description" fields=${[
      { key: "name", label: "Name", value: e.name, required: true }, { key: "labels", label: "Labels, one a line", type: "lines", value: e.labels }, { key: "description", label: "Description", type: "area", value: e.description }]}
      run=${async (/** @type {any} */ given) => { await patch(`experiments/${e.id}`, given); reload(); }} />
    <button onClick=${() => setDialog("move")}>Move to a project</button>
    <${FormButton} label="Log retention" title="How long logs are kept" whole fields=${[{ key: "numDays", label: "Days after a trial's end; -1: without a limit", type: "number", min: -1, max: 32_767, value: 30, required: true }]}
      run=${(/** @type {any} */ given) => put(`experiments/${e.id}/retain_logs`, given)} />
    <button onClick=${() => setDialog("keep")}>Checkpoints to keep</button>
    ${isOver(e) && html`<${Confirm} kind="" label="Remove TensorBoard files" title="Remove the TensorBoard files of experiment ${e.id}?" confirm="Remove" done="They are being removed" run=${() => remove(`experiments/${e.id}/tensorboard-files`)}><p>A TensorBoard of ${e.name} shows nothing afterwards. Metrics, checkpoints and logs stay.</p></${Confirm}>`}
    ${isOver(e) && html`<${Confirm} label="Delete" title="Delete experiment ${e.id}?" confirm="Delete" run=${async () => { await remove(`experiments/${e.id}`); go(`/det/projects/${e.projectId}`); }} done="The experiment is being deleted"><p>${e.name} goes: ${many(e.numTrials, "trial")}, ${many(e.checkpointCount, "checkpoint")} (${bytes(e.checkpointSize)}), metrics and logs. This can't be undone.</p></${Confirm}>`}
    ${dialog === "move" && html`<${Move} e=${e} onClose=${close} reload=${reload} />`}${dialog === "keep" && html`<${Keep} e=${e} storage=${storage} onClose=${close} reload=${reload} />`}</div>`;
}

/** @param {{e: any, onClose: () => void, reload: () => void}} props */
function Move({ e, onClose, reload }) {
  const workspaces = useGet("workspaces?limit=500");
  const [workspace, setWorkspace] = useState(String(e.workspaceId));
  const projects = useGet(`workspaces/${workspace}/projects?limit=500`);
  const [project, setProject] = useState(String(e.projectId));
  const choose = (/** @type {string} */ label, /** @type {any[]} */ all, /** @type {string} */ now, /** @type {(id: string) => void} */ set) => html`<${Field} label=${label} name="destination${label}Id ${label}"><${Pick} value=${now} set=${set} options=${all.map((each) => [each.id, each.name])} /></${Field}>`;
  const found = projects.data?.projects ?? [];
  // The project of another workspace is no choice any more: the first one there is.
  const target = found.some((/** @type {any} */ p) => String(p.id) === project) ? project : String(found[0]?.id ?? "");
  return html`<${Dialog} title="Move experiment ${e.id}" onClose=${onClose}>${choose("Workspace", workspaces.data?.workspaces ?? [], workspace, setWorkspace)}${choose("Project", found, target, setProject)}
    <div class="actions"><button onClick=${onClose}>Leave it</button><${Do} kind="first" disabled=${!target || target === String(e.projectId)} run=${async () => { await post(`experiments/${e.id}/move`, { destinationProjectId: Number(target) }); onClose(); reload(); }} done="Moved">Move</${Do}></div></${Dialog}>`;
}

/** Which checkpoints are kept; what another number would remove is named before. @param {{e: any, storage: any, onClose: () => void, reload: () => void}} props */
function Keep({ e, storage, onClose, reload }) {
  /** @type {[string, string][]} */
  const fields = [["save_experiment_best", "Best of the whole experiment"], ["save_trial_best", "Best of each trial"], ["save_trial_latest", "Latest of each trial"]];
  const [values, setValues] = useState(() => Object.fromEntries(fields.map(([key]) => [key, String(storage[key] ?? 0)])));
  const rested = useRested(values, 300);
  // What a policy would remove: the route is one of the older generation, which are not below /api/v1.
  const doomed = useGet(`../../experiments/${e.id}/preview_gc${query(rested)}`);
  const isChanged = fields.some(([key]) => Number(values[key]) !== (storage[key] ?? 0));
  const isComplete = fields.every(([key]) => /^\d+$/.test(values[key]));
  const rows = doomed.data?.checkpoints ?? [];
  const size = rows.reduce((/** @type {number} */ sum, /** @type {any} */ row) => sum + Number(row.Size), 0);
  const change = async () => {
    await patch(`experiments/${e.id}`, { checkpointStorage: { saveExperimentBest: Number(values.save_experiment_best), saveTrialBest: Number(values.save_trial_best), saveTrialLatest: Number(values.save_trial_latest) } });
    onClose();
    reload();
  };
  return html`<${Dialog} title="Checkpoints that experiment ${e.id} keeps" onClose=${onClose}>
    ${fields.map(([key, label]) => html`<${Field} key=${key} label=${label} name=${key}><input type="number" min="0" value=${values[key]} onInput=${typed((text) => setValues({ ...values, [key]: text }))} /></${Field}>`)}
    <${Load} of=${doomed}>${() => (!rows.length ? html`<p role="status">No checkpoint would be removed.</p>` : html`<${Band} bad>${many(rows.length, "checkpoint")} (${bytes(size)}) ${isOver(e) ? "go, for good." : "go when the experiment has ended."}</${Band}>
      <${Table} label="checkpoints that go" rows=${rows.slice(0, MOST_SHOWN)} id=${(/** @type {any} */ row) => row.UUID} columns=${[
        { key: "trial", title: "Trial", num: true, cell: (/** @type {any} */ row) => row.TrialID }, { key: "steps", title: "Steps", num: true, cell: (/** @type {any} */ row) => row.StepsCompleted }, { key: "uuid", title: "Checkpoint", cell: (/** @type {any} */ row) => html`<code>${row.UUID}</code>` }, { key: "size", title: "Size", num: true, cell: (/** @type {any} */ row) => bytes(Number(row.Size)) }]} />
      ${rows.length > MOST_SHOWN && html`<p class="muted">and ${rows.length - MOST_SHOWN} more</p>`}`)}</${Load}>
    <div class="actions"><button onClick=${onClose}>Leave it</button>${!isChanged && isOver(e) && rows.length > 0 && html`<${Do} kind="danger" done="They are being removed" run=${async () => { await post(`undeterred/experiments/${e.id}/gc`); onClose(); }}>Remove them now</${Do}>`}
      <${Do} kind=${rows.length ? "danger" : "first"} disabled=${!isChanged || !isComplete || rested !== values || !doomed.data} done="Changed" run=${change}>Change it</${Do}></div></${Dialog}>`;
}
