// Campaigns: steps that come after each other, their runs and their schedule.
import { html } from "../html.js";
import { call, post, query, remove } from "../api.js";
import { useGet } from "../data.js";
import { FormButton } from "../form.js";
import { exact, lasted, metric } from "../format.js";
import { go, useQuery } from "../router.js";
import { Choice, Confirm, Do, Empty, Head, Load, Pages, State, Table, Tabs, When } from "../ui.js";

const LIMIT = 50;
const [BOX_W, BOX_H, GAP_X, GAP_Y] = [168, 46, 44, 16];
/** @type {Record<string, string>} */
const COLOURS = { COMPLETED: "var(--ok)", REUSED: "var(--ok)", RUNNING: "var(--run)", LAUNCHING: "var(--wait)", ERROR: "var(--bad)" };
const EXAMPLE = "name: nightly\nsteps:\n  train:\n    experiment:\n      entrypoint: python3 train.py\n      searcher: {name: single, metric: loss, max_length: 100}\n";

export function Campaigns() {
  const [offset, setOffset] = useQuery("offset", "0");
  const list = useGet(`undeterred/campaigns${query({ limit: LIMIT, offset })}`, ["campaigns"]);
  const create = async (/** @type {any} */ { definition }) => {
    const { campaign } = await post("undeterred/campaigns", { definition });
    go(`/det/campaigns/${campaign.id}`);
  };
  return html`<div class="stack"><${Head} title="Campaigns"><${FormButton} kind="first" label="New campaign" title="New campaign" confirm="Create it" done="Created" wide whole run=${create}
      fields=${[{ key: "definition", label: "Definition, as YAML", type: "area", rows: 18, value: EXAMPLE, required: true }]}><p>Steps that need code beside them: <code>det campaign create FILE FOLDER</code>.</p></${FormButton}></${Head}>
    <${Load} of=${list}>${(/** @type {any} */ { campaigns, pagination }) => html`<${Table} label="campaigns" rows=${campaigns} id=${(/** @type {any} */ c) => c.id} columns=${[
      { key: "name", title: "Name", cell: (/** @type {any} */ c) => html`<a href="/det/campaigns/${c.id}">${c.name}</a>` },
      { key: "owner", title: "Acts as", cell: (/** @type {any} */ c) => c.owner }, { key: "workspace", title: "Workspace", cell: (/** @type {any} */ c) => html`<a href="/det/workspaces/${c.workspaceId}">${c.workspace}</a>` },
      { key: "steps", title: "Steps", num: true, cell: (/** @type {any} */ c) => c.steps.length }, { key: "next", title: "Next run", cell: (/** @type {any} */ c) => html`<${Next} campaign=${c} />` },
      { key: "last", title: "Last run", cell: (/** @type {any} */ c) => c.lastRun && html`<a href="/det/campaigns/${c.id}?run=${c.lastRun.number}">${c.lastRun.number}</a> <${State} state=${c.lastRun.state} />` },
    ]} empty=${html`<${Empty} title="No campaigns yet"><p>A campaign runs steps after each other: experiments, tasks, and the registration of what came of them; now, or on a schedule.</p></${Empty}>`} />
    <${Pages} total=${pagination.total} offset=${Number(offset)} limit=${LIMIT} onOffset=${(/** @type {number} */ n) => setOffset(String(n))} />`}</${Load}></div>`;
}

/** @param {{campaign: any}} props */
const Next = ({ campaign: { schedule, isPaused } }) => (!schedule ? "–" : isPaused ? "paused" : schedule.next[0] ? html`<span title=${exact(schedule.next[0])}><${When} at=${schedule.next[0]} /></span>` : "never");

/** @param {{id: string, tab?: string}} props */
export function CampaignPage({ id, tab = "steps" }) {
  const state = useGet(`undeterred/campaigns/${id}`, [`campaign:${id}`]);
  return html`<${Load} of=${state} page>${(/** @type {any} */ { campaign }) => html`<div><${Head} title=${campaign.name} crumbs=${[["Campaigns", "/det/campaigns"]]}
      below=${html`<p class="muted">${campaign.description} Version ${campaign.version}; it acts as ${campaign.owner} in <a href="/det/workspaces/${campaign.workspaceId}">${campaign.workspace}</a>.
        ${campaign.schedule && html` ${campaign.schedule.cron} ${campaign.schedule.timeZone}, overlap ${campaign.schedule.overlap}; next run: <${Next} campaign=${campaign} />`}</p>`}><${Actions} campaign=${campaign} reload=${state.reload} /></${Head}>
    <${Tabs} base="/det/campaigns/${id}" now=${tab} tabs=${[["steps", "Steps"], ["runs", "Runs", campaign.lastRun?.number], ["definition", "Definition"]]} />
    ${tab === "runs" ? html`<${Runs} id=${id} />` : tab === "definition" ? html`<pre class="code" tabindex="0">${campaign.definition}</pre>` : html`<${Steps} campaign=${campaign} />`}</div>`}</${Load}>`;
}

/** @param {{campaign: any, reload: () => void}} props */
function Actions({ campaign, reload }) {
  const run = async (/** @type {any} */ { params, fresh }) => {
    const { run } = await post(`undeterred/campaigns/${campaign.id}/runs`, { params: params ?? {}, fresh });
    go(`/det/campaigns/${campaign.id}?run=${run.number}`);
    reload();
  };
  const edit = async (/** @type {any} */ { definition }) => {
    await call("PUT", `/api/v1/undeterred/campaigns/${campaign.id}`, { definition });
    reload();
  };
  const backfill = async (/** @type {any} */ { start, end, allAtOnce }) => post(`undeterred/campaigns/${campaign.id}/backfill`, { start: new Date(start).toISOString(), end: new Date(end).toISOString(), allAtOnce });
  const pause = async () => { await post(`undeterred/campaigns/${campaign.id}/pause`); reload(); };
  const activate = async () => { await post(`undeterred/campaigns/${campaign.id}/activate`); reload(); };
  if (!campaign.mayChange) return null;
  return html`<${FormButton} kind="first" label="Run it now" title="Run ${campaign.name}" confirm="Start it" done="Started" whole run=${run} fields=${[
      ...(Object.keys(campaign.params).length ? [{ key: "params", label: "Parameters, as JSON", type: "json", rows: 6, value: campaign.params }] : []), { key: "fresh", label: "Do every step, whatever earlier runs did", type: "check" }]} />
    ${campaign.schedule && (campaign.isPaused ? html`<${Do} run=${activate} done="Activated">Activate the schedule</${Do}>` : html`<${Do} run=${pause} done="Paused">Pause the schedule</${Do}>`)}
    ${campaign.mayEdit && html`<${FormButton} label="Edit" title="Edit ${campaign.name}" wide run=${edit} fields=${[{ key: "definition", label: "Definition, as YAML; its files stay", type: "area", rows: 20, value: campaign.definition, required: true }]} />`}
    ${campaign.mayEdit && campaign.schedule && html`<${FormButton} label="Back-fill" title="Back-fill ${campaign.name}" confirm="Start them" done="Their runs begin" whole run=${backfill} fields=${[
      { key: "start", label: "From", type: "datetime-local", required: true }, { key: "end", label: "To", type: "datetime-local", required: true }, { key: "allAtOnce", label: "Do not wait for each other", type: "check" }]}><p>A time of the schedule that has had its run gets no other one.</p></${FormButton}>`}
    <${Confirm} label="Delete" title="Delete campaign ${campaign.name}?" confirm="Delete" run=${async () => { await remove(`undeterred/campaigns/${campaign.id}`); go("/det/campaigns"); }}><p>Its runs go. The experiments, tasks and models that they made stay.</p></${Confirm}>`;
}

/** @param {{id: string}} props */
function Runs({ id }) {
  const [offset, setOffset] = useQuery("offset", "0");
  const list = useGet(`undeterred/campaigns/${id}/runs${query({ limit: LIMIT, offset })}`, [`campaign:${id}`]);
  return html`<${Load} of=${list}>${(/** @type {any} */ { runs, pagination }) => html`<${Table} label="runs" rows=${runs} id=${(/** @type {any} */ r) => r.number} columns=${[
    { key: "number", title: "Run", num: true, cell: (/** @type {any} */ r) => html`<a href="/det/campaigns/${id}?run=${r.number}">${r.number}</a>` }, { key: "state", title: "State", cell: (/** @type {any} */ r) => html`<${State} state=${r.state} />` },
    { key: "version", title: "Version", num: true, cell: (/** @type {any} */ r) => r.version }, { key: "by", title: "Started by", cell: (/** @type {any} */ r) => r.startedBy || `schedule, ${exact(r.scheduledAt)}` },
    { key: "start", title: "Started", cell: (/** @type {any} */ r) => html`<${When} at=${r.startedAt} />` }, { key: "lasted", title: "Lasted", cell: (/** @type {any} */ r) => lasted(r.startedAt, r.endedAt) }, { key: "message", title: "Message", wrap: true, cell: (/** @type {any} */ r) => r.message },
  ]} empty=${html`<${Empty} title="No run yet"></${Empty}>`} /><${Pages} total=${pagination.total} offset=${Number(offset)} limit=${LIMIT} onOffset=${(/** @type {number} */ n) => setOffset(String(n))} />`}</${Load}>`;
}

/** @param {{campaign: any}} props */
function Steps({ campaign }) {
  const [chosen, choose] = useQuery("run");
  const newest = campaign.lastRun?.number;
  const number = Number(chosen) || newest;
  const state = useGet(number ? `undeterred/campaigns/${campaign.id}/runs/${number}` : null, [`campaign:${campaign.id}`]);
  if (!number) return html`<div class="stack"><${Graph} campaign=${campaign} steps=${[]} /><p class="muted">No run yet.</p></div>`;
  const numbers = Array.from({ length: Math.min(newest, 100) }, (_, i) => String(newest - i));
  return html`<${Load} of=${state}>${(/** @type {any} */ { run }) => html`<div class="stack">
    <div class="row spread"><div class="row"><${Choice} label="run" value=${String(number)} onChange=${choose} options=${numbers.map((n) => [n, n])} /><${State} state=${run.state} /><span class="muted">${run.startedBy ? `by ${run.startedBy}` : `for ${exact(run.scheduledAt)}`}, ${lasted(run.startedAt, run.endedAt)}</span></div>
      <div class="row">${campaign.mayChange && !run.endedAt && html`<${Commands} campaign=${campaign} run=${run} reload=${state.reload} />`}</div></div>
    ${run.message && html`<p>${run.message}</p>`}<${Graph} campaign=${campaign} steps=${run.steps} />
    <${Table} label="steps" rows=${run.steps} id=${(/** @type {any} */ s) => s.name} columns=${[
      { key: "name", title: "Step", cell: (/** @type {any} */ s) => s.name }, { key: "state", title: "State", cell: (/** @type {any} */ s) => html`<${State} state=${s.state} />` },
      { key: "what", title: "What", cell: (/** @type {any} */ s) => html`<${What} step=${s} />` }, { key: "metric", title: "Metric", num: true, cell: (/** @type {any} */ s) => (s.outputs.metric === undefined ? "" : metric(s.outputs.metric)) },
      { key: "attempt", title: "Attempts", num: true, cell: (/** @type {any} */ s) => s.attempt }, { key: "lasted", title: "Lasted", cell: (/** @type {any} */ s) => (s.startedAt ? lasted(s.startedAt, s.endedAt) : "") },
      { key: "message", title: "Message", wrap: true, cell: (/** @type {any} */ s) => s.message }]} /></div>`}</${Load}>`;
}

/** @param {{campaign: any, run: any, reload: () => void}} props */
function Commands({ campaign, run, reload }) {
  const pause = async () => { await post(`undeterred/campaigns/${campaign.id}/runs/${run.number}/pause`); reload(); };
  const activate = async () => { await post(`undeterred/campaigns/${campaign.id}/runs/${run.number}/activate`); reload(); };
  const cancel = async () => { await post(`undeterred/campaigns/${campaign.id}/runs/${run.number}/cancel`); reload(); };
  const kill = async () => { await post(`undeterred/campaigns/${campaign.id}/runs/${run.number}/kill`); reload(); };
  const isStopping = ["CANCELING", "KILLING"].includes(run.state);
  return html`${!isStopping && (run.state === "PAUSED" ? html`<${Do} run=${activate} done="Activated">Activate</${Do}>` : html`<${Do} run=${pause} done="Paused">Pause</${Do}>`)}
    ${!isStopping && html`<${Confirm} label="Cancel" title="Cancel run ${run.number}?" confirm="Cancel it" run=${cancel}><p>The experiments of its steps store checkpoints and end.</p></${Confirm}>`}
    ${run.state !== "KILLING" && html`<${Confirm} label="Kill" title="Kill run ${run.number}?" confirm="Kill it" run=${kill}><p>The experiments of its steps end at once.</p></${Confirm}>`}`;
}

/** @param {{step: any}} props */
const What = ({ step: { experimentId, taskId, outputs, reusedFrom } }) => html`${experimentId ? html`<a href="/det/experiments/${experimentId}">experiment ${experimentId}</a>` : taskId ? html`<a href="/det/tasks/${taskId}">task</a>` : outputs.version ? html`<a href="/det/models/${encodeURIComponent(outputs.model)}">${outputs.model} version ${outputs.version}</a>` : ""}${reusedFrom ? ` of run ${reusedFrom}` : ""}`;

/** Steps as boxes, each to the right of those before it. @param {{campaign: any, steps: any[]}} props */
function Graph({ campaign, steps }) {
  /** @type {Map<string, number>} */
  const column = new Map();
  const depth = (/** @type {string} */ name) => {
    if (!column.has(name)) column.set(name, Math.max(-1, ...campaign.steps.find((/** @type {any} */ s) => s.name === name).before.map(depth)) + 1);
    return /** @type {number} */ (column.get(name));
  };
  /** @type {Map<string, [number, number]>} */
  const at = new Map();
  const rows = /** @type {number[]} */ ([]);
  for (const step of campaign.steps) {
    const x = depth(step.name);
    rows[x] = (rows[x] ?? -1) + 1;
    at.set(step.name, [x * (BOX_W + GAP_X) + 2, rows[x] * (BOX_H + GAP_Y) + 2]);
  }
  /** @type {Map<string, Set<string>>} */
  const ancestors = new Map();
  const allBefore = (/** @type {string} */ name) => {
    if (!ancestors.has(name)) {
      /** @type {string[]} */
      const direct = campaign.steps.find((/** @type {any} */ s) => s.name === name).before;
      ancestors.set(name, new Set(direct.flatMap((each) => [each, ...allBefore(each)])));
    }
    return /** @type {Set<string>} */ (ancestors.get(name));
  };
  // a line that others imply would cross the boxes between
  const lines = (/** @type {any} */ step) => step.before.filter((/** @type {string} */ other) => !step.before.some((/** @type {string} */ each) => allBefore(each).has(other)));
  const became = new Map(steps.map((step) => [step.name, step]));
  const [width, height] = [rows.length * (BOX_W + GAP_X) - GAP_X + 4, (Math.max(...rows) + 1) * (BOX_H + GAP_Y) - GAP_Y + 4];
  return html`<section class="card scroll" tabindex="0" aria-label="graph of the steps"><svg class="picture" style=${{ width: `${width}px`, maxWidth: "none" }} viewBox="0 0 ${width} ${height}" role="img" aria-label="${campaign.steps.length} steps, each to the right of those that it comes after">
    ${campaign.steps.flatMap((/** @type {any} */ step) => lines(step).map((/** @type {string} */ other) => {
      const [[x1, y1], [x2, y2]] = [at.get(other) ?? [0, 0], at.get(step.name) ?? [0, 0]];
      return html`<path key="${other} ${step.name}" fill="none" stroke="var(--line-strong)" d="M${x1 + BOX_W} ${y1 + BOX_H / 2} C${x1 + BOX_W + GAP_X / 2} ${y1 + BOX_H / 2} ${x2 - GAP_X / 2} ${y2 + BOX_H / 2} ${x2} ${y2 + BOX_H / 2}" />`;
    }))}
    ${campaign.steps.map((/** @type {any} */ step) => {
      const [x, y] = at.get(step.name) ?? [0, 0];
      const now = became.get(step.name);
      return html`<g key=${step.name}><title>${step.name}: ${step.kind}${now ? `, ${now.state} ${now.message}` : ""}</title><rect x=${x} y=${y} width=${BOX_W} height=${BOX_H} rx="6" fill="var(--surface)" stroke=${COLOURS[now?.state] ?? "var(--line-strong)"} stroke-width="2" />
        <text x=${x + 10} y=${y + 19}>${step.name.length > 20 ? `${step.name.slice(0, 19)}…` : step.name}</text><text x=${x + 10} y=${y + 36}>${step.kind}${now ? `, ${now.state.toLowerCase()}` : ""}</text></g>`;
    })}</svg></section>`;
}
