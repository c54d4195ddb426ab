// What is asked before an experiment is forked, continued or edited.
import { html, useState } from "./html.js";
import { patch, post } from "./api.js";
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
  const length = (/** @type {any} */ value) => (value && typeof value === "object" ? Object.values(value)[0] : value);
  /** @type {[string, string, any][]} */
  const fields = [["maxTrials", "Trials in all", searcher.max_trials], ["maxConcurrentTrials", "Trials at a time (0: all)", searcher.max_concurrent_trials], ["maxLength", "Length of a training", length(searcher.max_length) ?? searcher.max_time]];
  const resources = e.config.resources;
  /** @type {[string, string, any][]} */
  const places = [["priority", "Priority (1 goes first)", resources.priority], ["weight", "Weight (more is a larger share)", resources.weight], ["maxSlots", "Slots at most, of all its trials", resources.max_slots]];
  const [values, setValues] = useState(/** @type {Record<string, string>} */ ({}));
  const [space, setSpace] = useState("");
  const changed = (/** @type {[string, string, any][]} */ all) => Object.fromEntries(all.filter(([key, , now]) => values[key] && Number(values[key]) !== now).map(([key]) => [key, Number(values[key])]));
  const search = { ...changed(fields), ...(space.trim() ? { hyperparameters: parsed(space) } : {}) };
  const rest = changed(places);
  const save = async () => {
    if (space.trim() && !search.hyperparameters) throw new Error("hyperparameters: this is no JSON");
    if (Object.keys(search).length) await post(`experiments/${e.id}/search/amend`, search);
    if (Object.keys(rest).length) await patch(`experiments/${e.id}`, { resources: rest });
    onClose();
  };
  const input = (/** @type {[string, string, any]} */ [key, text, now]) => html`<label class="field" key=${key}>${text}<input type="number" min="0" step="any" placeholder=${now ?? "as it is"} value=${values[key] ?? now ?? ""} onInput=${(/** @type {any} */ event) => setValues({ ...values, [key]: event.target.value })} /></label>`;
  return html`<${Dialog} title="Edit the search of experiment ${e.id}" onClose=${onClose} wide><p class="muted">What was decided so far stays.</p>
    <div style=${{ display: "grid", gridTemplateColumns: "repeat(auto-fill, minmax(220px, 1fr))", gap: "var(--s3)" }}>${fields.filter(([, , now]) => now !== undefined && now !== null).map(input)}${places.map(input)}</div>
    <details><summary>Narrow the space of hyperparameters</summary><label class="field">All of it, as JSON<textarea rows="6" spellcheck="false" placeholder=${JSON.stringify(e.config.hyperparameters)} value=${space} onInput=${(/** @type {any} */ event) => setSpace(event.target.value)}></textarea></label></details>
    <div class="actions"><button onClick=${onClose}>Leave it</button><${Do} kind="first" disabled=${!Object.keys(search).length && !Object.keys(rest).length && !space.trim()} run=${save} done="Changed">Change it</${Do}></div></${Dialog}>`;
}

/** @param {string} text */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
