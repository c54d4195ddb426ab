// Access tokens: how they are made and described.
import { html, useState } from "./html.js";
import { patch, post } from "./api.js";
import { budgetFields } from "./budget.js";
import { FormButton } from "./form.js";

/** @param {{userId: number, reload: () => void}} props */
export function NewToken({ userId, reload }) {
  const [made, setMade] = useState("");
  const run = async (/** @type {any} */ { days, ...given }) => {
    const { token } = await post("tokens", { ...given, userId, lifespan: days < 0 ? "-1" : `${24 * days}h` });
    setMade(token);
    reload();
  };
  return html`<div class="row"><${FormButton} label="New token" kind="first" title="New access token" confirm="Create" done="Created" whole run=${run} fields=${[
      { key: "description", label: "What it is for", value: "made in the browser" }, { key: "days", label: "Days until it expires; -1: never", type: "number", min: -1, value: 30, required: true }, { key: "scope", label: "It may be used for", type: "choice", value: "full", options: [["full", "everything that you may do"], ["read-only", "reading only"]] }]} /></div>
    ${made && html`<p>It is shown once:</p><pre class="code" tabindex="0">${made}</pre>`}`;
}

/** @param {{token: any, reload: () => void}} props */
export const DescribeToken = ({ token, reload }) => html`<${FormButton} key=${token.description} kind="small" label="Describe" about="describe token ${token.id}" title="Description of token ${token.id}" fields=${[{ key: "description", label: "What it is for", value: token.description }]}
  run=${async (/** @type {any} */ given) => { await patch(`tokens/${token.id}`, given); reload(); }} />`;

/** What all that a token starts may use together. @param {{token: any}} props */
export const TokenBudget = ({ token }) => html`<${FormButton} kind="small" label="Budget" about="budget of token ${token.id}" title="Budget of token ${token.id}" fields=${budgetFields({}, true)} run=${(/** @type {any} */ limits) => patch(`undeterred/tokens/${token.id}/budget`, limits)} />`;
