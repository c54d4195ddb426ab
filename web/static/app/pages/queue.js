// The queue of each pool: who runs, who waits, why, and what can be moved.
import { html, useState } from "../html.js";
import { post, query } from "../api.js";
import { useGet } from "../data.js";
import { duration, many, stateOf } from "../format.js";
import { go } from "../router.js";
import { Do, Empty, Head, Load, State, Table, When } from "../ui.js";


/** @param {{pool?: string}} props */
export function Queue({ pool }) {
  const pools = useGet("resource-pools", ["agents", "jobs"]);
  return html`<${Load} of=${pools} page>${(/** @type {any} */ { resourcePools }) => {
    if (!resourcePools.length) return html`<${Empty} title="There is no pool"></${Empty}>`;
    const now = resourcePools.find((/** @type {any} */ p) => p.name === pool) ?? resourcePools.find((/** @type {any} */ p) => p.defaultComputePool) ?? resourcePools[0];
    return html`<div class="stack"><${Head} title="Queue of ${now.name}">${resourcePools.length > 1 && html`<select aria-label="pool" value=${now.name} onChange=${(/** @type {any} */ event) => go(`/det/resourcepool/${encodeURIComponent(event.target.value)}`)}>${resourcePools.map((/** @type {any} */ p) => html`<option key=${p.name} value=${p.name} selected=${p.name === now.name}>${p.name}</option>`)}</select>`}</${Head}>
      <p class="muted">${now.slotsUsed} of ${many(now.slotsAvailable, "slot")} in use on ${many(now.numAgents, "agent")}; ${now.schedulerType.replace("SCHEDULER_TYPE_", "").toLowerCase().replaceAll("_", " ")}${now.details?.priorityScheduler ? `, ${now.details.priorityScheduler.preemption ? "with" : "without"} preemption` : ""}</p>
      <${Jobs} key=${now.name} pool=${now.name} /></div>`;
  }}</${Load}>`;
}

/** @param {{pool: string}} props */
function Jobs({ pool }) {
  const list = useGet(`job-queues-v2${query({ resourcePool: pool, limit: 200 })}`, ["jobs"]);
  const [chosen, setChosen] = useState(/** @type {Set<string>} */ (new Set()));
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
        { key: "do", title: "", cell: (/** @type {any} */ j) => !j.isLimited && stateOf(j.summary?.state) === "QUEUED" && j.jobId !== first && html`<${Do} kind="small" run=${update({ aheadOf: first }, [j.jobId])}>To the front</${Do}>` },
      ]} empty=${html`<${Empty} title="Nothing runs or waits in this pool"></${Empty}>`} /></div>`;
  }}</${Load}>`;
}

/** @param {{label: string, min: number, max: number, run: (n: number) => Promise<any>}} props */
function SetNumber({ label, min, max, run }) {
  const [value, setValue] = useState("");
  return html`<span class="row tight"><input type="number" min=${min} max=${max} aria-label=${label} placeholder=${label} value=${value} style=${{ width: "90px" }} onInput=${(/** @type {any} */ event) => setValue(event.target.value)} /><${Do} disabled=${!value} run=${() => run(Number(value))} done="Changed">Set</${Do}></span>`;
}
