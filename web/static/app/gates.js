// What of an experiment waits for approval, or did.
import { html } from "./html.js";
import { post } from "./api.js";
import { useGet } from "./data.js";
import { Confirm, Do, Load, When } from "./ui.js";

/** As a card; nothing without gates. @param {{e: any}} props */
export function Gates({ e }) {
  const list = useGet(`undeterred/gates?experimentId=${e.id}`, [`experiment:${e.id}`]);
  if (list.data && !list.data.gates.length) return null;
  return html`<section class="card"><h2>Approvals</h2><${Load} of=${list}>${(/** @type {any} */ { gates }) => gates.map((/** @type {any} */ gate) => html`<${Gate} key=${gate.id} gate=${gate} reload=${list.reload} />`)}</${Load}></section>`;
}

/** @param {{gate: any, reload: () => void}} props */
function Gate({ gate, reload }) {
  const approve = async () => {
    await post(`undeterred/gates/${gate.id}/approve`);
    reload();
  };
  const deny = async () => {
    await post(`undeterred/gates/${gate.id}/deny`);
    reload();
  };
  return html`<div class="stack tight"><p>Gate ${gate.id}: ${gate.text}.</p>
    <p class="muted">${gate.state === "WAITING" ? html`It waits since <${When} at=${gate.askedAt} />${gate.dueAt && html`; by default it is ${gate.rule.default === "approve" ? "approved" : "denied"} <${When} at=${gate.dueAt} />`}.` : html`${gate.state === "APPROVED" ? "Approved" : "Denied"} by ${gate.decidedBy} <${When} at=${gate.decidedAt} />.`}</p>
    ${gate.mayDecide && html`<div class="row"><${Do} kind="first" run=${approve} done="Approved">Approve</${Do}>
      <${Confirm} kind="danger" label="Deny" title="Deny gate ${gate.id}?" confirm="Deny" run=${deny}><p>${gate.what === "promotion" ? "The trials that wait there end." : "What was asked for is not done."}</p></${Confirm}></div>`}</div>`;
}
