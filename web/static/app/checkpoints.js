// Checkpoints: what is stored, and what can be done with it.
import { html, useState } from "./html.js";
import { call, post } from "./api.js";
import { useGet } from "./data.js";
import { Form } from "./form.js";
import { bytes, many, metric } from "./format.js";
import { Confirm, Dialog, Do, Empty, State, Table, When } from "./ui.js";

/** @param {{rows: any[], metricName: string, reload: () => void, canChange: boolean}} props */
export function CheckpointTable({ rows, metricName, reload, canChange }) {
  const [register, setRegister] = useState("");
  const [files, setFiles] = useState(/** @type {any} */ (null));
  return html`<${Table} label="checkpoints" rows=${rows} id=${(/** @type {any} */ c) => c.uuid} columns=${[
      { key: "uuid", title: "Checkpoint", cell: (/** @type {any} */ c) => html`<code title=${c.uuid}>${c.uuid}</code>` },
      { key: "trial", title: "Trial", num: true, cell: (/** @type {any} */ c) => (c.training?.trialId ? html`<a href="/det/trials/${c.training.trialId}">${c.training.trialId}</a>` : "–") },
      { key: "steps", title: "Steps", num: true, cell: (/** @type {any} */ c) => c.metadata?.steps_completed ?? "–" },
      { key: "metric", title: metricName, num: true, cell: (/** @type {any} */ c) => metric(c.training?.searcherMetric) },
      { key: "state", title: "State", cell: (/** @type {any} */ c) => html`<${State} state=${c.state} />` },
      { key: "size", title: "Size", num: true, cell: (/** @type {any} */ c) => bytes(Object.values(c.resources ?? {}).reduce((sum, size) => sum + Number(size), 0)) },
      { key: "time", title: "Stored", cell: (/** @type {any} */ c) => html`<${When} at=${c.reportTime} />` },
      { key: "do", title: "", cell: (/** @type {any} */ c) => c.state === "STATE_COMPLETED" && html`<div class="row tight"><a class="button small" href="/checkpoints/${c.uuid}" download="${c.uuid}.tar">Download</a><button class="small" onClick=${() => setRegister(c.uuid)}>Register</button>
        ${canChange && html`<button class="small" onClick=${() => setFiles(c)}>Files</button><${Confirm} kind="small danger" label="Delete" title="Delete a checkpoint?" confirm="Delete" run=${async () => { await call("DELETE", "/api/v1/checkpoints", { checkpointUuids: [c.uuid] }); reload(); }}><p>${c.uuid} of trial ${c.training?.trialId} goes with its files. Nothing can start from it afterwards.</p></${Confirm}>`}</div>` },
    ]} empty=${html`<${Empty} title="No checkpoints yet"><p>A trial stores one with <code>core_context.checkpoint.store_path(…)</code></p></${Empty}>`} />
    ${register && html`<${Register} uuid=${register} onClose=${() => setRegister("")} />`}${files && html`<${Files} checkpoint=${files} onClose=${() => setFiles(null)} reload=${reload} />`}`;
}

/** The files of a checkpoint, some of which may go. @param {{checkpoint: any, onClose: () => void, reload: () => void}} props */
function Files({ checkpoint: c, onClose, reload }) {
  const [chosen, setChosen] = useState(/** @type {Set<string>} */ (new Set()));
  // A folder that is chosen goes with all that is in it: it is not said twice.
  const rows = Object.entries(c.resources ?? {}).map(([path, size]) => ({ path, size: Number(size) })).filter((row) => !row.path.endsWith("/")).sort((a, b) => a.path.localeCompare(b.path));
  const size = rows.filter((row) => chosen.has(row.path)).reduce((sum, row) => sum + row.size, 0);
  const run = async () => {
    await post("checkpoints/rm", { checkpointUuids: [c.uuid], checkpointGlobs: [...chosen].map((path) => path.replace(/[*?[\]]/g, "[$&]")) });
    onClose();
    reload();
  };
  return html`<${Dialog} title="Files of a checkpoint" onClose=${onClose} wide><p><code>${c.uuid}</code> of trial ${c.training?.trialId}</p>
    <${Table} label="files of the checkpoint" rows=${rows} id=${(/** @type {any} */ row) => row.path} chosen=${chosen} onChoose=${setChosen} columns=${[
      { key: "path", title: "File", cell: (/** @type {any} */ row) => html`<code>${row.path}</code>` }, { key: "size", title: "Size", num: true, cell: (/** @type {any} */ row) => bytes(row.size) }]} empty=${html`<${Empty} title="It has no files"></${Empty}>`} />
    ${chosen.size > 0 && html`<p role="status">${many(chosen.size, "file")} (${bytes(size)}) go for good. What needs them can't start from this checkpoint afterwards.</p>`}
    <div class="actions"><button onClick=${onClose}>Leave it</button><${Do} kind="danger" disabled=${!chosen.size} run=${run} done="They are being removed">Remove ${many(chosen.size, "file")}</${Do}></div></${Dialog}>`;
}

/** @param {{uuid: string, onClose: () => void}} props */
function Register({ uuid, onClose }) {
  const models = useGet("models?limit=500");
  const run = async (/** @type {any} */ { modelName, name }) => {
    if (!modelName && !name) throw new Error("name: expected a model, or the name of a new one");
    if (name) await post("models", { name });
    await post(`models/${encodeURIComponent(name || modelName)}/versions`, { modelName: name || modelName, checkpointUuid: uuid });
  };
  return html`<${Form} title="Register a checkpoint" onClose=${onClose} confirm="Register" done="Registered" whole run=${run} fields=${[
    { key: "modelName", label: "Model", type: "choice", options: [["", "choose one"], ...(models.data?.models ?? []).map((/** @type {any} */ m) => [m.name, m.name])] }, { key: "name", label: "or a new one" }]} />`;
}
