// Notebooks, shells, commands, TensorBoards, generic tasks: all of them, one, and the page that waits for one.
import { html, useEffect, useState } from "../html.js";
import { get, Problem } from "../api.js";
import { useGet } from "../data.js";
import { lasted, stateOf } from "../format.js";
import { useQuery } from "../router.js";
import { session } from "../session.js";
import { Choice, Failed, Head, Load, State, Tabs, When } from "../ui.js";
import { KINDS, LaunchButtons, TaskActions, TaskList } from "../tasklist.js";
import { LogView } from "../logview.js";

export function Tasks() {
  const [whose, setWhose] = useQuery("user", "mine");
  const [kind, setKind] = useQuery("kind");
  return html`<div class="stack"><${Head} title="Tasks"><${LaunchButtons} /></${Head}>
    <${TaskList} key=${whose} filter=${whose === "mine" ? { userIds: session()?.user.id } : {}} kind=${kind}><${Choice} label="of" value=${whose} onChange=${setWhose} options=${[["mine", "me"], ["all", "all users"]]} /><${Choice} label="kind" value=${kind} onChange=${setKind} options=${[["", "any"], ...KINDS.map(([, name]) => [name, name]), ["Generic", "Generic"]]} /></${TaskList}></div>`;
}

/** Finds which kind a task is. @param {string} id */
function useTask(id) {
  const [found, setFound] = useState(/** @type {any} */ ({}));
  const state = useGet(`tasks/${id}`, [`task:${id}`]);
  const kind = state.data?.task?.taskType?.replace("TASK_TYPE_", "");
  const path = { NOTEBOOK: "notebooks", SHELL: "shells", COMMAND: "commands", TENSORBOARD: "tensorboards" }[/** @type {string} */ (kind)];
  useEffect(() => {
    if (!path) return;
    let isLate = false;
    get(`${path}/${id}`).then((answer) => !isLate && setFound({ ...answer[path.slice(0, -1)], config: answer.config, path, kind: KINDS.find(([key]) => key === path)?.[1] }), () => {});
    return () => {
      isLate = true;
    };
  }, [path, id, state.data]);
  return { state, task: found.id ? found : null, kind };
}

/** @param {{id: string, tab?: string}} props */
export function TaskPage({ id, tab = "logs" }) {
  const { state, task, kind } = useTask(id);
  return html`<${Load} of=${state} page>${(/** @type {any} */ data) => {
    const shown = task ?? { id, path: "tasks", kind: kind === "TRIAL" ? "Trial" : "Generic", description: data.task.name ?? id, state: data.task.taskState ?? (data.task.endTime ? "COMPLETED" : "RUNNING"), startTime: data.task.startTime, endTime: data.task.endTime };
    return html`<div><${Head} title=${shown.description || id} crumbs=${[["Tasks", "/det/tasks"]]} below=${html`<div class="row"><${State} state=${shown.state} /><span class="muted">${shown.kind}, ${shown.username ?? ""} ${shown.resourcePool ?? ""}, ${lasted(data.task.startTime, data.task.endTime)}, started <${When} at=${data.task.startTime} /></span></div>`}>
      ${kind !== "TRIAL" && html`<${TaskActions} task=${{ ...shown, endTime: data.task.endTime }} reload=${state.reload} />`}</${Head}>
      <${Tabs} base="/det/tasks/${id}" now=${tab} tabs=${[["logs", "Log"], ["why", "Why"], ["connect", "Connect"], ["config", "Configuration"]]} />
      ${tab === "why" ? html`<${Why} id=${id} />` : tab === "connect" ? html`<${Connect} task=${shown} />` : tab === "config" ? html`<pre class="code" tabindex="0">${JSON.stringify(shown.config ?? {}, null, 2)}</pre>` : html`<${LogView} of="tasks/${id}" taskIds=${[id]} />`}</div>`;
  }}</${Load}>`;
}

/** @param {{id: string}} props */
function Why({ id }) {
  const why = useGet(`undeterred/tasks/${id}/why`, [`task:${id}`]);
  return html`<section class="card"><${Load} of=${why}>${(/** @type {any} */ { sentences }) => html`<ul class="why">${sentences.map((/** @type {string} */ text) => html`<li key=${text}>${text}</li>`)}</ul>`}</${Load}></section>`;
}

/** @param {{task: any}} props */
function Connect({ task }) {
  const commands = task.path === "shells" ? [`det shell open ${task.id}`, `det shell ssh-config ${task.id} >> ~/.ssh/config`, `det shell open ${task.id} --web`] : task.path === "notebooks" ? [`det notebook open ${task.id}`] : [`det task logs -f ${task.id}`, `det task why ${task.id}`];
  return html`<section class="card stack tight"><h2>From your machine</h2>${commands.map((line) => html`<pre class="code" key=${line}>${line}</pre>`)}<p class="muted">Its program, kernels and terminals go on while you are away.</p></section>`;
}

/** Waits until a task is ready, then opens it. @param {{id: string}} props */
export function Wait({ id }) {
  const { state, task } = useTask(id);
  const [error, setError] = useState(/** @type {any} */ (null));
  const allocation = state.data?.task?.allocations?.[0];
  const ended = Boolean(state.data?.task?.endTime);
  const isReady = Boolean(allocation?.isReady) && !ended;
  useEffect(() => {
    if (!isReady || !task?.path) return;
    get(`${task.path}/${id}`).then((answer) => {
      const one = answer[task.path.slice(0, -1)];
      const address = task.path === "shells" ? one.terminalAddress : one.serviceAddress;
      if (!address) throw new Problem(0, task.path === "shells" ? "this shell has no terminal for browsers, as its key has a passphrase, or is of another user: use `det shell open`" : "only its owner and administrators open it");
      location.replace(new URL(address, location.origin).pathname + new URL(address, location.origin).search);
    }, setError);
  }, [isReady, task?.path]);
  if (error) return html`<${Failed} error=${error} />`;
  return html`<${Load} of=${state} page>${() => html`<div class="stack"><${Head} title=${task?.description || "Opening…"} below=${html`<div class="row"><${State} state=${task?.state ?? ""} /><span role="status">${ended ? "This task has ended." : isReady ? "It is ready: opening it." : stateOf(task?.state ?? "") === "QUEUED" ? "It waits for slots." : "It starts."}</span></div>`}>${task && html`<${TaskActions} task=${task} reload=${state.reload} />`}</${Head}>
    <${Why} id=${id} /><${LogView} of="tasks/${id}" taskIds=${[id]} /></div>`}</${Load}>`;
}
