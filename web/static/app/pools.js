// For administrators: pools are made, described, set up and removed.
import { html } from "./html.js";
import { patch, post, remove } from "./api.js";
import { useGet } from "./data.js";
import { FormButton } from "./form.js";
import { many } from "./format.js";
import { Confirm, Do } from "./ui.js";

const POLICIES = [["priority", "priority"], ["fair_share", "fair share"], ["round_robin", "round robin"]];

/** @param {{reload: () => void}} props */
export const NewPool = ({ reload }) => html`<${FormButton} label="New pool" kind="first" title="New pool" confirm="Create" done="Created" whole fields=${[{ key: "name", label: "Name", required: true }, { key: "description", label: "Description" }, { key: "scheduler", label: "Scheduler", type: "choice", value: "priority", options: POLICIES }]}
  run=${async (/** @type {any} */ { scheduler, ...given }) => { await post("undeterred/resource-pools", { ...given, settings: { scheduler } }); reload(); }} />`;

/** What can be changed of a pool. @param {{pool: any, reload: () => void}} props */
export function PoolActions({ pool, reload }) {
  const path = `undeterred/resource-pools/${encodeURIComponent(pool.name)}`;
  const isDefault = pool.defaultComputePool || pool.defaultAuxPool;
  const change = async (/** @type {any} */ what) => {
    await patch(path, what);
    reload();
  };
  return html`<div class="row tight nowrap"><${PoolSettings} pool=${pool} path=${path} />
    <${FormButton} kind="small" label="Describe" about="describe ${pool.name}" title="Description of ${pool.name}" fields=${[{ key: "description", label: "Description", value: pool.description }]} run=${change} />
    ${!pool.defaultComputePool && html`<${Do} kind="small" title="of experiments with slots" done="It is the default for what has slots" run=${() => change({ defaultComputePool: true })}>Default for slots</${Do}>`}
    ${!pool.defaultAuxPool && html`<${Do} kind="small" title="of what has no slots" done="It is the default for what has no slots" run=${() => change({ defaultAuxPool: true })}>Default without</${Do}>`}
    ${!isDefault && !pool.numAgents && html`<${Confirm} kind="small danger" label="Remove" title="Remove pool ${pool.name}?" confirm="Remove" done="Removed" run=${async () => { await remove(path); reload(); }}><p>Its settings and bindings go. It has ${many(pool.numAgents, "agent")}; experiments that ended there stay.</p></${Confirm}>`}</div>`;
}

/** @param {{pool: any, path: string}} props */
function PoolSettings({ pool, path }) {
  const one = useGet(`${path}/settings`);
  if (!one.data) return null;
  const { settings } = one.data;
  // A merge patch: what was taken out of the text goes back to its default.
  const run = async (/** @type {any} */ given) => one.set(await patch(`${path}/settings`, { settings: { ...Object.fromEntries(Object.keys(settings).filter((key) => !(key in given.settings)).map((key) => [key, null])), ...given.settings } }));
  return html`<${FormButton} key=${JSON.stringify(settings)} kind="small" label="Settings" about="settings of ${pool.name}" title="How ${pool.name} shares its slots" wide fields=${[{ key: "settings", label: "Settings, as JSON", type: "json", value: settings, required: true }]} run=${run}>
    <p class="muted">They hold from its next decision on. What runs keeps its slots until the pool wants them back.</p></${FormButton}>`;
}
