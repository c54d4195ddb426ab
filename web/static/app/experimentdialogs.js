// What is asked before an experiment is forked, continued, edited, described, moved.
import { html, useState } from "./html.js";
import { patch, post, put } from "./api.js";
import { useGet } from "./data.js";
import { go } from "./router.js";
import { Dialog, Do } from "./ui.js";

/** @param {{e: any, at: number, onClose: () => void}} props `at`: the last shared decision; 0: all of them */
export function Fork({ e, at, onClose }) {
  const [config, setConfig] = useState(e.originalConfig);
  const [shares, setShares] = useState(at > 0);
  const start = async () => {
    const sent = shares ? { config, at: at || null, activate: true } : null;
    const answer = sent ? await post(`experiments/${e.id}/fork`, sent)
      : await post("experiments", { config, activate: true, parentId: e.id, projectId: e.projectId });
    onClose();
    go(`/det/experiments/${answer.experiment.id}`);
  };
  return html`<${Dialog} title="Fork experiment ${e.id}${at ? ` at decision ${at}` : ""}" onClose=${onClose} wide>
    <label class="row tight"><input type="checkbox" checked=${shares} onChange=${(/** @type {any} */ event) => setShares(event.target.checked)} />share ${at ? `the first ${at} decisions` : "all decisions"} and what was trained until then</label>
    <label class="field">Configuration<textarea rows="18" spellcheck="false" value=${config} onInput=${(/** @type {any} */ event) => setConfig(event.target.value)}></textarea></label>
    <div class="actions"><button onClick=${onClose}>Leave it</button><${Do} kind="first" run=${start}>Fork</${Do}></div></${Dialog}>`;
}

/** @param {{e: any, onClose: () => void}} props */
export function Continue({ e, onClose }) {
  const [config, setConfig] = useState("");
  return html`<${Dialog} title="Continue experiment ${e.id}" onClose=${onClose}><p>Its trials go on from their latest checkpoints. What should be different, as YAML:</p>
    <label class="field">Changes<textarea rows="6" spellcheck="false" placeholder="searcher: {max_length: {epochs: 32}}" value=${config} onInput=${(/** @type {any} */ event) => setConfig(event.target.value)}></textarea></label>
    <div class="actions"><button onClick=${onClose}>Leave it</button><${Do} kind="first" run=${async () => { await post("experiments/continue", { id: e.id, overrideConfig: config }); onClose(); }} done="It goes on">Continue</${Do}></div></${Dialog}>`;
}

/** What of a search can be changed while it runs. @param {{e: any, onClose: () => void}} props */
export function Edit({ e, onClose }) {
  const searcher = e.config.searcher;
  const length = searcher.max_length && typeof searcher.max_length === "object" ? Object.values(searcher.max_length)[0] : searcher.max_length;
  /** @type {[string, string, any][]} */
  const fields = [["maxTrials", "Trials in all", searcher.max_trials], ["maxConcurrentTrials", "Trials at a time (0: all)", searcher.max_concurrent_trials], ["maxLength", "Length of a training", length]];
  const [values, setValues] = useState(/** @type {Record<string, string>} */ ({}));
  const [priority, setPriority] = useState("");
  const changes = fields.filter(([key, , now]) => values[key] && Number(values[key]) !== now);
  const save = async () => {
    if (changes.length) await post(`experiments/${e.id}/search/amend`, Object.fromEntries(changes.map(([key]) => [key, Number(values[key])])));
    if (priority) await patch(`experiments/${e.id}`, { resources: { priority: Number(priority) } });
    onClose();
  };
  return html`<${Dialog} title="Edit the search of experiment ${e.id}" onClose=${onClose}><p class="muted">What was decided so far stays.</p>
    ${fields.filter(([, , now]) => now !== undefined && now !== null).map(([key, text, now]) => html`<label class="field" key=${key}>${text}<input type="number" min="0" value=${values[key] ?? now} onInput=${(/** @type {any} */ event) => setValues({ ...values, [key]: event.target.value })} /></label>`)}
    <label class="field">Priority (1 goes first)<input type="number" min="1" max="99" placeholder="as it is" value=${priority} onInput=${(/** @type {any} */ event) => setPriority(event.target.value)} /></label>
    ${changes.length > 0 && html`<p role="status">Effect: ${changes.map(([key, text, now]) => `${text.toLowerCase()} ${now} → ${values[key]}`).join("; ")}. ${changes.some(([key]) => key === "maxTrials") ? `${Number(values.maxTrials) - searcher.max_trials} more trials start as places come free.` : ""}</p>`}
    <div class="actions"><button onClick=${onClose}>Leave it</button><${Do} kind="first" disabled=${!changes.length && !priority} run=${save} done="Changed">Change it</${Do}></div></${Dialog}>`;
}

/** @param {{e: any, onClose: () => void, reload: () => void}} props */
export function Describe({ e, onClose, reload }) {
  const [name, setName] = useState(e.name);
  const [labels, setLabels] = useState(e.labels.join(", "));
  const [description, setDescription] = useState(e.description);
  const save = async () => {
    await patch(`experiments/${e.id}`, { name, description, labels: labels.split(",").map((/** @type {string} */ each) => each.trim()).filter(Boolean) });
    onClose();
    reload();
  };
  const type = (/** @type {(text: string) => void} */ set) => (/** @type {any} */ event) => set(event.target.value);
  return html`<${Dialog} title="Name, labels and description" onClose=${onClose}><label class="field">Name<input value=${name} onInput=${type(setName)} /></label>
    <label class="field">Labels, with commas between<input value=${labels} onInput=${type(setLabels)} /></label><label class="field">Description<textarea rows="4" value=${description} onInput=${type(setDescription)}></textarea></label>
    <div class="actions"><button onClick=${onClose}>Leave it</button><${Do} kind="first" run=${save} done="Saved">Save</${Do}></div></${Dialog}>`;
}

/** @param {{e: any, onClose: () => void, reload: () => void}} props */
export function Move({ e, onClose, reload }) {
  const workspaces = useGet("workspaces?limit=500");
  const [workspace, setWorkspace] = useState(String(e.workspaceId));
  const projects = useGet(`workspaces/${workspace}/projects?limit=500`);
  const [project, setProject] = useState(String(e.projectId));
  return html`<${Dialog} title="Move experiment ${e.id}" onClose=${onClose}>
    <label class="field">Workspace<select value=${workspace} onChange=${(/** @type {any} */ event) => setWorkspace(event.target.value)}>${(workspaces.data?.workspaces ?? []).map((/** @type {any} */ w) => html`<option key=${w.id} value=${w.id} selected=${String(w.id) === workspace}>${w.name}</option>`)}</select></label>
    <label class="field">Project<select value=${project} onChange=${(/** @type {any} */ event) => setProject(event.target.value)}>${(projects.data?.projects ?? []).map((/** @type {any} */ p) => html`<option key=${p.id} value=${p.id} selected=${String(p.id) === project}>${p.name}</option>`)}</select></label>
    <div class="actions"><button onClick=${onClose}>Leave it</button><${Do} kind="first" run=${async () => { await post(`experiments/${e.id}/move`, { experimentId: e.id, destinationProjectId: Number(project) }); onClose(); reload(); }} done="Moved">Move</${Do}></div></${Dialog}>`;
}

/** @param {{e: any, onClose: () => void}} props */
export function Retention({ e, onClose }) {
  const [days, setDays] = useState("30");
  return html`<${Dialog} title="How long logs are kept" onClose=${onClose}><label class="field">Days after a trial's end; -1: for good<input type="number" min="-1" value=${days} onInput=${(/** @type {any} */ event) => setDays(event.target.value)} /></label>
    <div class="actions"><button onClick=${onClose}>Leave it</button><${Do} kind="first" run=${async () => { await put(`experiments/${e.id}/retain_logs`, { experimentId: e.id, numDays: Number(days) }); onClose(); }} done="Saved">Save</${Do}></div></${Dialog}>`;
}
