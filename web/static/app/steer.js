// What is done by hand to single trials of a search that runs: a decision of a user's, recorded and replayed like the search's own.
import { html } from "./html.js";
import { post } from "./api.js";
import { FormButton } from "./form.js";

const ACTIONS = [
  ["promote", "promote it: past the next rung, whatever its result there"],
  ["boost", "boost it: past every rung, to its full length"],
  ["stop", "stop it: it stores a checkpoint and ends, and the search takes what it reached"]];

/** @param {number} experimentId @param {any} body */
const steer = (experimentId, body) => post(`undeterred/experiments/${experimentId}/search/steer`, body);

/** One trial. @param {{t: any, reload: () => void}} props */
export const Steer = ({ t, reload }) => html`<${FormButton} label="Steer" title="Steer trial ${t.id} by hand" confirm="Do it" done="Done" whole
  fields=${[{ key: "action", label: "The search is to", type: "choice", value: "promote", options: ACTIONS }]}
  run=${async (/** @type {any} */ { action }) => { await steer(t.experimentId, { action, trialId: t.id }); reload(); }}>
  <p class="muted">It stands in the record of the search as your decision.</p></${FormButton}>`;

/** A further trial, with a point of one's own. @param {{e: any, like?: any, reload: () => void}} props `like`: hyperparameters to begin with */
export const AddTrial = ({ e, like = {}, reload }) => html`<${FormButton} label="Add a trial" title="Add a trial to experiment ${e.id}" confirm="Add it" done="Added" wide whole
  fields=${[{ key: "hparams", label: "A value for each hyperparameter, as JSON", type: "json", value: like, required: true }]}
  run=${async (/** @type {any} */ { hparams }) => { await steer(e.id, { action: "add", hparams }); reload(); }}>
  <p class="muted">The search goes on as it would have without it.</p></${FormButton}>`;
