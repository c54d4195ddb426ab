// The queue of each pool: who runs, who waits, why, and what can be moved.
import { html, useState } from "../html.js";
import { post, query } from "../api.js";
import { useGet } from "../data.js";
import { Field, Pick, typed } from "../form.js";
import { duration, many, stateOf } from "../format.js";
import { go } from "../router.js";
import { may, session } from "../session.js";
import { Choice, Dialog, Do, Empty, Head, Load, State, Table, When } from "../ui.js";


/** @param {{pool?: string}} props */
export function Queue({ pool }) {
  const pools = useGet("resource-pools", ["agents", "jobs"]);
  return html`<${Load} of=${pools} page>${(/** @type {any} */ { resourcePools }) => {
    if (!resourcePools.length) return html`<${Empty} title="There is no pool"></${Empty}>`;
    const now = resourcePools.find((/** @type {any} */ p) => p.name === pool) ?? resourcePools.find((/** @type {any} */ p) => p.defaultComputePool) ?? resourcePools[0];
    return html`<div class="stack"><${Head} title="Queue of ${now.name}">${resourcePools.length > 1 && html`<${Pick} aria-label="pool" value=${now.name} set=${(/** @type {string} */ name) => go(`/det/resourcepool/${encodeURIComponent(name)}`)} options=${resourcePools.map((/** @type {any} */ p) => [p.name, p.name])} />`}</${Head}>
      <p class="muted">${now.slotsUsed} of ${many(now.slotsAvailable, "slot")} in use on ${many(now.numAgents, "agent")}; ${now.schedulerType.replace("SCHEDULER_TYPE_", "").toLowerCase().replaceAll("_", " ")}${now.details?.priorityScheduler ? `, ${now.details.priorityScheduler.preemption ? "with" : "without"} preemption` : ""}</p>
      <${Jobs} key=${now.name} pool=${now.name} /></div>`;
  }}</${Load}>`;
}

/** @param {{pool: string}} props */
function Jobs({ pool }) {
  const list = useGet(`job-queues-v2${query({ resourcePool: pool, limit: 200 })}`, ["jobs"]);
  const [chosen, setChosen] = useState(/** @type {Set<string>} */ (new Set()));
  const [placed, setPlaced] = useState(/** @type {any} */ (null));
  const update = (/** @type {any} */ change, /** @type {string[]} */ ids) => async () => {
    await post("job-queues", { updates: ids.map((jobId) => ({ jobId, ...change })) });
    list.reload();
  };
  return html`<${Load} of=${list}>${(/** @type {any} */ { jobs }) => {
    const rows = jobs.map((/** @type {any} */ job) => job.full ?? { ...job.limited, isLimited: true });
    const waiting = rows.filter((/** @type {any} */ job) => stateOf(job.summary?.state) === "QUEUED");
    const first = waiting[0]?.jobId;
    return html`<div class="stack">${chosen.size > 0 && html`<div class="row card"><strong>${many(chosen.size, "job")} chosen</strong><${SetNumber} label="Priority" min=${1} max=${99} run=${(/** @type {number} */ n) => update({ priority: n }, [...chosen])()} /><${SetNumber} label="Weight" min=${1} max=${1000} run=${(/** @type {number} */ n) => update({ weight: n }, [...chosen])()} /><button class="quiet" onClick=${() => setChosen(new Set())}>Clear</button></div>`}
      <${Table} label="jobs of the pool" rows=${rows} id=${(/** @type {any} */ j) => j.jobId} chosen=${chosen} onChoose=${setChosen} columns=${[
        { key: "n", title: "Place", num: true, cell: (/** @type {any} */ j) => rows.indexOf(j) + 1 },
        { key: "name", title: "Job", cell: (/** @type {any} */ j) => (j.isLimited ? html`<span class="muted">of another workspace</span>` : html`<a href=${j.type === "TYPE_EXPERIMENT" ? `/det/experiments/${j.entityId}` : `/det/tasks/${j.entityId}`}>${j.name}</a>`) },
        { key: "type", title: "Kind", cell: (/** @type {any} */ j) => j.type?.replace("TYPE_", "").toLowerCase() },
        { key: "state", title: "State", cell: (/** @type {any} */ j) => html`<${State} state=${j.summary?.state ?? ""} />` },
        { key: "slots", title: "Slots", num: true, hint: "held / asked for", cell: (/** @type {any} */ j) => `${j.allocatedSlots} / ${j.requestedSlots}` },
        { key: "priority", title: "Priority", num: true, cell: (/** @type {any} */ j) => j.priority },
        { key: "weight", title: "Weight", num: true, cell: (/** @type {any} */ j) => j.weight },
        { key: "user", title: "User", cell: (/** @type {any} */ j) => j.username },
        { key: "since", title: "Since", cell: (/** @type {any} */ j) => html`<${When} at=${j.submissionTime} />` },
        { key: "why", title: "Why it waits", wrap: true, cell: (/** @type {any} */ j) => html`${j.waits ?? ""}${j.estimatedWaitSeconds ? html` <span class="muted">about ${duration(j.estimatedWaitSeconds)} more</span>` : ""}` },
        { key: "do", title: "", cell: (/** @type {any} */ j) => mayMove(j) && html`<div class="row tight nowrap">${stateOf(j.summary?.state) === "QUEUED" && j.jobId !== first && html`<${Do} kind="small" run=${update({ aheadOf: first }, [j.jobId])}>To the front</${Do}>`}
          <button class="small" aria-label="change the place of ${j.name}" onClick=${() => setPlaced(j)}>Change</button></div>` },
      ]} empty=${html`<${Empty} title="Nothing runs or waits in this pool"></${Empty}>`} />${placed && html`<${Place} job=${placed} others=${rows.filter((/** @type {any} */ j) => j.jobId !== placed.jobId)} pool=${pool} onClose=${() => setPlaced(null)} run=${(/** @type {any} */ change) => update(change, [placed.jobId])()} />`}</div>`;
  }}</${Load}>`;
}

/** @param {any} job */
const mayMove = (job) => !job.isLimited && (job.userId === session()?.user.id || may(job.type === "TYPE_EXPERIMENT" ? "UPDATE_EXPERIMENT" : "UPDATE_NSC", job.workspaceId));

/** Where a job stands: one change at a time, as the queue takes them. @param {{job: any, others: any[], pool: string, onClose: () => void, run: (change: any) => Promise<any>}} props */
function Place({ job, others, pool, onClose, run }) {
  const pools = useGet("resource-pools");
  const [what, setWhat] = useState("priority");
  const [values, setValues] = useState(/** @type {Record<string, any>} */ ({ priority: job.priority ?? "", weight: job.weight ?? "" }));
  const jobs = others.map((other) => [other.jobId, other.isLimited ? `a job of another workspace, ${other.jobId}` : other.name]);
  const elsewhere = (pools.data?.resourcePools ?? []).filter((/** @type {any} */ p) => p.name !== pool).map((/** @type {any} */ p) => [p.name, p.name]);
  /** @type {[string, string][]} */
  const kinds = [["priority", "its priority"], ["weight", "its weight"], ...(jobs.length ? /** @type {[string, string][]} */ ([["aheadOf", "ahead of another job"], ["behindOf", "behind another job"]]) : []), ...(elsewhere.length ? /** @type {[string, string][]} */ ([["resourcePool", "to another pool"]]) : [])];
  const options = what === "resourcePool" ? elsewhere : jobs;
  const isNumber = what === "priority" || what === "weight";
  const value = values[what] ?? (isNumber ? "" : options[0]?.[0]);
  const set = (/** @type {string} */ text) => setValues({ ...values, [what]: text });
  return html`<${Dialog} title="Place of ${job.name}" onClose=${onClose}><${Choice} label="change" value=${what} onChange=${setWhat} options=${kinds} />
    ${isNumber ? html`<${Field} label=${what === "priority" ? "Priority, 1 to 99: 1 goes first" : "Weight: more is a larger share"} name=${what}><input type="number" min=${what === "priority" ? 1 : 0} max=${what === "priority" ? 99 : null} step="any" value=${value} onInput=${typed(set)} /></${Field}>`
      : html`<${Field} label=${what === "resourcePool" ? "Pool" : "Job"} name="${what} job"><${Pick} value=${value} set=${set} options=${options} /></${Field}>`}
    ${what === "resourcePool" && html`<p class="muted">What runs stores a checkpoint, leaves, and asks for slots there.</p>`}
    <div class="actions"><button onClick=${onClose}>Leave it</button><${Do} kind="first" disabled=${value === "" || value === undefined} done="Changed" run=${async () => { await run({ [what]: isNumber ? Number(value) : value }); onClose(); }}>Change it</${Do}></div></${Dialog}>`;
}

/** @param {{label: string, min: number, max: number, run: (n: number) => Promise<any>}} props */
function SetNumber({ label, min, max, run }) {
  const [value, setValue] = useState("");
  return html`<span class="row tight"><input type="number" min=${min} max=${max} aria-label=${label} placeholder=${label} value=${value} style=${{ width: "90px" }} onInput=${(/** @type {any} */ event) => setValue(event.target.value)} /><${Do} disabled=${!value} run=${() => run(Number(value))} done="Changed">Set</${Do}></span>`;
}
