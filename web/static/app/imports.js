// Imports of another cluster's database, for administrators: how far each is, what came, and what could not.
import { html } from "./html.js";
import { post } from "./api.js";
import { useGet } from "./data.js";
import { FormButton } from "./form.js";
import { useQuery } from "./router.js";
import { Band, Confirm, Empty, Load, Progress, State, Table, When } from "./ui.js";

const MODES = /** @type {Record<string, string>} */ ({ PLAN: "plan: say what would come, write nothing", RUN: "run: bring what is not here yet", VERIFY: "verify: compare what came with its source" });
const ENDED = ["COMPLETED", "CANCELED", "ERROR"];

export function Imports() {
  const list = useGet("undeterred/imports", ["imports"]);
  const [chosen, setChosen] = useQuery("import");
  const start = async (/** @type {any} */ given) => {
    const made = await post("undeterred/imports", given);
    list.reload();
    setChosen(String(made.import.id));
  };
  return html`<div class="stack"><div class="row"><${FormButton} kind="first" label="New import" title="New import" confirm="Start" done="Started" whole run=${start} fields=${[
    { key: "mode", label: "What to do", type: "choice", value: "PLAN", options: Object.entries(MODES) },
    // Has a password, which is shown to nobody again.
    { key: "source", label: "Address of the other database, as the orchestrator reaches it", type: "password", placeholder: "postgresql://USER:PASSWORD@HOST/NAME", required: true },
    { key: "shift", label: "move all numbers, as this cluster is not empty", type: "check" }]} /></div>
    <${Load} of=${list}>${(/** @type {any} */ { imports }) => html`<${Table} label="imports" rows=${imports} id=${(/** @type {any} */ i) => i.id} columns=${[
      { key: "id", title: "Import", cell: (/** @type {any} */ i) => html`<a href="/det/admin/imports?import=${i.id}" aria-current=${String(i.id) === chosen ? "true" : null}>${i.id} ${i.mode.toLowerCase()}</a>` },
      { key: "source", title: "From", cell: (/** @type {any} */ i) => i.source }, { key: "state", title: "State", cell: (/** @type {any} */ i) => html`<${State} state=${i.state} />` },
      { key: "start", title: "Started", cell: (/** @type {any} */ i) => html`<${When} at=${i.createdAt} />` }, { key: "end", title: "Ended", cell: (/** @type {any} */ i) => html`<${When} at=${i.endedAt} />` },
    ]} empty=${html`<${Empty} title="Nothing was imported yet"><p>An import brings over what a Determined 0.38 cluster has: start with a plan. A dump is imported by <code>det import run --from FILE</code>.</p></${Empty}>`} />
    ${imports.filter((/** @type {any} */ i) => String(i.id) === chosen).map((/** @type {any} */ i) => html`<${Report} key=${i.id} of=${i} reload=${list.reload} />`)}`}</${Load}></div>`;
}

/** @param {{of: any, reload: () => void}} props */
function Report({ of: one, reload }) {
  const is = /** @type {Record<string, boolean>} */ ({ [one.mode]: true });
  const skipped = one.tables.flatMap((/** @type {any} */ table) => table.skipped.map((/** @type {any} */ why) => ({ ...why, kind: table.kind })));
  const moved = Object.entries(one.shifts).filter(([, by]) => by);
  const count = (/** @type {any} */ n) => Number(n).toLocaleString();
  return html`<section class="card stack tight" aria-label="import ${one.id}"><div class="row spread"><h2>Import ${one.id}: ${one.mode.toLowerCase()} from ${one.source}</h2>
      ${!ENDED.includes(one.state) && html`<${Confirm} kind="danger" label="Cancel" title="Cancel import ${one.id}?" confirm="Cancel it" run=${async () => { await post(`undeterred/imports/${one.id}/cancel`, {}); reload(); }}><p>What came stays; another run goes on from there.</p></${Confirm}>`}</div>
    ${one.error && html`<${Band} bad>${one.error}</${Band}>`}
    ${one.warnings.map((/** @type {string} */ text) => html`<p>${text}</p>`)}
    ${moved.length > 0 && html`<p>Numbers move: ${moved.map(([kind, by]) => `${kind} by ${by}`).join(", ")}</p>`}
    ${one.tables.length > 0 && html`<${Table} label="records of import ${one.id}" rows=${one.tables} id=${(/** @type {any} */ t) => t.kind} columns=${[
      { key: "kind", title: "What", cell: (/** @type {any} */ t) => t.kind }, { key: "far", title: "Looked at", cell: (/** @type {any} */ t) => html`<${Progress} share=${t.isDone ? 1 : Number(t.total) ? Number(t.read) / Number(t.total) : 0} />` },
      { key: "read", title: "Of", num: true, cell: (/** @type {any} */ t) => count(t.total) },
      ...(is.VERIFY ? [{ key: "bad", title: "Different", num: true, cell: (/** @type {any} */ t) => count(t.differing) }] : [{ key: "written", title: is.PLAN ? "Would come" : "Written", num: true, cell: (/** @type {any} */ t) => count(t.written) }]),
      { key: "same", title: is.VERIFY ? "Same" : "Unchanged", num: true, cell: (/** @type {any} */ t) => count(t.unchanged) },
      { key: "skipped", title: "Skipped", num: true, cell: (/** @type {any} */ t) => count(t.skipped.reduce((/** @type {number} */ sum, /** @type {any} */ why) => sum + why.count, 0)) },
    ]} />`}
    ${skipped.length > 0 && html`<h3>What could not come</h3><${Table} label="what could not come" rows=${skipped} id=${(/** @type {any} */ why) => why.kind + why.reason} columns=${[
      { key: "kind", title: "What", cell: (/** @type {any} */ why) => why.kind }, { key: "count", title: "How many", num: true, cell: (/** @type {any} */ why) => count(why.count) },
      { key: "why", title: "Why", wrap: true, cell: (/** @type {any} */ why) => why.reason }, { key: "keys", title: "Which", wrap: true, cell: (/** @type {any} */ why) => `${why.keys.join(", ")}${why.count > why.keys.length ? ", …" : ""}` },
    ]} />`}</section>`;
}
