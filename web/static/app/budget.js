// What may be used of the cluster, and what was.
import { html } from "./html.js";
import { patch } from "./api.js";
import { useGet } from "./data.js";
import { FormButton } from "./form.js";
import { count, duration } from "./format.js";
import { Load, Progress, When } from "./ui.js";
import { isAdmin, mayChange } from "./session.js";

const KINDS = /** @type {const} */ ([["slotHours", "Slot-hours", "slotHours"], ["price", "Price", "price"], ["wallTime", "Wall time", "wallTimeSeconds"], ["trials", "Trials", "trials"]]);

/** Of an experiment, as a card. @param {{e: any}} props */
export function ExperimentBudget({ e }) {
  const path = `undeterred/experiments/${e.id}/budget`;
  const save = (/** @type {any} */ limits) => patch(path, limits);
  return html`<${Card} path=${path} topic="experiment:${e.id}" title="Budget of experiment ${e.id}" save=${mayChange(e) && save} />`;
}

/** Of a workspace; administrators of the cluster change it. @param {{w: any}} props */
export function WorkspaceBudget({ w }) {
  const path = `undeterred/workspaces/${w.id}/budget`;
  const save = (/** @type {any} */ limits) => patch(path, limits);
  return html`<${Card} path=${path} topic="experiments" title="Budget of workspace ${w.name}" save=${isAdmin() && save} isShared />`;
}

/** @param {{path: string, topic: string, title: string, save: false | ((limits: any) => Promise<any>), isShared?: boolean}} props `isShared`: by all that a workspace or a token starts */
function Card({ path, topic, title, save, isShared }) {
  const one = useGet(path, [topic]);
  const run = async (/** @type {any} */ limits) => {
    if (save) await save(limits);
    one.reload();
  };
  return html`<section class="card"><h2>Budget</h2><${Load} of=${one}>${(/** @type {any} */ found) => html`<${Used} of=${found} />
    ${save && html`<${FormButton} label="Change the budget" title=${title} run=${run} fields=${budgetFields(found.limits, isShared)} />`}`}</${Load}></section>`;
}

/** Limits, what was used of each, and what was said. @param {{of: any}} props */
function Used({ of: { limits, used, spent, lastsUntil, notices } }) {
  const set = KINDS.filter(([key]) => limits[key] !== null);
  if (!set.length || !used) return html`<p class="muted">It has none: nothing limits what it uses.</p>`;
  return html`<dl class="facts">${set.map(([key, text, ofUsed]) => {
      const most = key === "wallTime" ? secondsOf(limits[key]) : limits[key];
      const shown = key === "wallTime" ? duration(used[ofUsed]) : count(Number(used[ofUsed].toPrecision(3)));
      return html`<dt key=${key}>${text}</dt><dd><${Progress} share=${used[ofUsed] / most} /> ${shown} of ${key === "wallTime" ? limits[key] : count(limits[key])}</dd>`;
    })}${lastsUntil && !spent && html`<dt>Lasts until</dt><dd><${When} at=${lastsUntil} />, as it is</dd>`}</dl>
    ${spent && html`<p class="band bad" role="status">It is spent. Raise it, then activate what is paused.</p>`}
    ${notices.slice(-3).map((/** @type {any} */ each) => html`<p class="muted" key=${each.at + each.text}><${When} at=${each.at} />: ${each.text}</p>`)}`;
}

/** What is asked for a budget. @param {any} limits as they are; {}: not known @param {boolean} [isShared] */
export const budgetFields = (limits, isShared) => [
  { key: "slotHours", label: "Slot-hours; 0: no limit", type: "number", min: 0, value: limits.slotHours, placeholder: "no limit" },
  { key: "price", label: "Price, at the prices of its pools; 0: no limit", type: "number", min: 0, value: limits.price, placeholder: "no limit" },
  { key: "wallTime", label: "Wall time, such as 12h; 0s: no limit", value: limits.wallTime, placeholder: "no limit" },
  { key: "trials", label: "Trials; 0: no limit", type: "number", min: 0, value: limits.trials, placeholder: "no limit" },
  { key: "soft", label: "Warned of at this share of a limit", type: "number", min: 0, value: limits.soft },
  ...(isShared ? [{ key: "reset", label: "Count what is used from 0 again", type: "check" }] : [])];

const SECONDS = /** @type {Record<string, number>} */ ({ d: 86_400, h: 3600, m: 60, s: 1 });

/** Of 1h30m. @param {string} text */
function secondsOf(text) {
  return [...text.matchAll(/([\d.]+)([dhms])/g)].reduce((sum, [, number, unit]) => sum + Number(number) * SECONDS[/** @type {string} */ (unit)], 0);
}
