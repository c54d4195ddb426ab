// What is asked before an experiment is forked, continued or edited.
import { html, useRef, useState } from "./html.js";
import { patch, post } from "./api.js";
import { useGet, useRested } from "./data.js";
import { Field, Form, typed } from "./form.js";
import { count } from "./format.js";
import { go } from "./router.js";
import { Dialog, Do, Failed, Table, sentence } from "./ui.js";

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
    <${Field} label="Configuration" name="config"><textarea rows="18" spellcheck="false" value=${config} onInput=${typed(setConfig)}></textarea></${Field}>
    <div class="actions"><button onClick=${onClose}>Leave it</button><${Do} kind="first" run=${start}>Fork</${Do}></div></${Dialog}>`;
}

/** Of an experiment whose configuration is not there yet. @param {{id: number, onClose: () => void}} props */
export function ForkAgain({ id, onClose }) {
  const one = useGet(`experiments/${id}`);
  if (one.error) return html`<${Dialog} title="Fork experiment ${id}" onClose=${onClose}><${Failed} error=${one.error} again=${one.reload} /></${Dialog}>`;
  return one.data ? html`<${Fork} e=${one.data.experiment} at=${0} onClose=${onClose} />` : null;
}

/** @param {{e: any, onClose: () => void}} props */
export const Continue = ({ e, onClose }) => html`<${Form} title="Continue experiment ${e.id}" onClose=${onClose} confirm="Continue" done="It goes on" whole fields=${[{ key: "overrideConfig", label: "Changes", type: "area", placeholder: "searcher: {max_length: {epochs: 32}}" }]}
  run=${(/** @type {any} */ given) => post("experiments/continue", { id: e.id, ...given })}><p>Its trials go on from their latest checkpoints. What should be different, as YAML:</p></${Form}>`;

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
  const input = (/** @type {[string, string, any]} */ [key, text, now]) => html`<${Field} key=${key} label=${text} name=${key}><input type="number" min="0" step="any" placeholder=${now ?? "as it is"} value=${values[key] ?? now ?? ""} onInput=${typed((text) => setValues({ ...values, [key]: text }))} /></${Field}>`;
  return html`<${Dialog} title="Edit the search of experiment ${e.id}" onClose=${onClose} wide><p class="muted">What was decided so far stays.</p>
    <div style=${{ display: "grid", gridTemplateColumns: "repeat(auto-fill, minmax(220px, 1fr))", gap: "var(--s3)" }}>${fields.filter(([, , now]) => now !== undefined && now !== null).map(input)}${places.map(input)}</div>
    <details><summary>Narrow the space of hyperparameters</summary><${Field} label="All of it, as JSON" name="hyperparameters"><textarea rows="6" spellcheck="false" placeholder=${JSON.stringify(e.config.hyperparameters)} value=${space} onInput=${typed(setSpace)}></textarea></${Field}></details>
    ${Object.keys(search).length > 0 && html`<${Effect} e=${e} change=${JSON.stringify(search)} />`}
    <div class="actions"><button onClick=${onClose}>Leave it</button><${Do} kind="first" disabled=${!Object.keys(search).length && !Object.keys(rest).length && !space.trim()} run=${save} done="Changed">Change it</${Do}></div></${Dialog}>`;
}

/** What the search would do from now on, with the change and without. @param {{e: any, change: string}} props */
function Effect({ e, change }) {
  const rested = useRested(change, 300);
  const found = useGet(`undeterred/experiments/${e.id}/search/preview-amend`, [], rested);
  // What was found for the numbers before stays until the others are there, and says so.
  const shown = useRef(/** @type {any} */ (null));
  if (found.data) shown.current = found.data;
  if (found.error) return html`<p class="band bad" role="alert">${sentence(found.error)}</p>`;
  if (!shown.current) return html`<div class="skeleton" style=${{ height: "180px" }} role="status"><span class="visually-hidden">simulating</span></div>`;
  const { unit, without, changed } = shown.current;
  const number = (/** @type {any} */ value, /** @type {string} */ after = "") => (value === null || value === undefined ? "not known" : `${count(Number.isInteger(value) ? value : Number(value.toPrecision(3)))}${after}`);
  const rung = (/** @type {any} */ each) => (each ? `${each.compared}, ${each.promoted} go on` : "–");
  /** @type {[string, string, string][]} */
  const rows = [["Trials in the end", number(without.trials), number(changed.trials)], ["still to be created", number(without.newTrials), number(changed.newTrials)], ["Promotions to come", number(without.promotions), number(changed.promotions)],
    [`Still to train, ${unit}`, number(without.units), number(changed.units)], ["Trials at a time", number(without.atOnce), number(changed.atOnce)], ["Slot-hours", number(without.slotHours), number(changed.slotHours)], ["Hours, if all get their slots at once", number(without.hours), number(changed.hours)],
    ...changed.rungs.map((/** @type {any} */ each, /** @type {number} */ i) => [`${changed.rungs.some((/** @type {any} */ r) => r.bracket) ? `Bracket ${each.bracket}, compared` : "Compared"} at ${count(each.length)} ${unit}`, rung(without.rungs[i]), rung(each)])];
  return html`<section class="stack tight" aria-label="effect of the change" aria-busy=${!found.data || rested !== change}><h3>From now on</h3><${Table} label="effect of the change" rows=${rows} id=${(/** @type {any} */ row) => row[0]} columns=${[
      { key: "what", title: "", cell: (/** @type {any} */ row) => row[0] }, { key: "now", title: "As it is", num: true, cell: (/** @type {any} */ row) => row[1] }, { key: "then", title: "Changed", num: true, cell: (/** @type {any} */ row) => (row[1] === row[2] ? html`<span class="muted">${row[2]}</span>` : html`<strong>${row[2]}</strong>`) }]} />
    <p class="muted">Simulated: trials without a result are taken to do as well as those that have one, at the speed so far.${changed.isWhole ? "" : " The search is too large to be followed to its end: there is more to come."}</p></section>`;
}

/** @param {string} text */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
