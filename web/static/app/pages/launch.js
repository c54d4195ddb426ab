// A new experiment: configuration and files, checked while it is typed, with the plan of its search.
import { html, useEffect, useState } from "../html.js";
import { post } from "../api.js";
import { useGet, useRested } from "../data.js";
import { Field, Pick, typed } from "../form.js";
import { bytes, count, many } from "../format.js";
import { go, useLocation } from "../router.js";
import { Asks, Do, Head, sentence } from "../ui.js";

const LARGEST = 95 * 1024 * 1024;
const FIRST = ["name: my first search", "entrypoint: python3 train.py", "hyperparameters:", "  learning_rate: {type: log, base: 10, minval: -4, maxval: -1}", "searcher:", "  name: adaptive_asha", "  metric: accuracy", "  smaller_is_better: false", "  max_length: {epochs: 16}", "  max_trials: 16", ""].join("\n");

export function Launch() {
  const { query } = useLocation();
  const workspaces = useGet("workspaces?limit=500");
  const projects = useGet(query.get("project") ? `projects/${query.get("project")}` : null);
  const templates = useGet("templates?limit=500");
  const pools = useGet("resource-pools", ["agents"]);
  const [config, setConfig] = useState(sessionStorage.getItem("launch") ?? FIRST);
  const [files, setFiles] = useState(/** @type {any[]} */ ([]));
  const [template, setTemplate] = useState("");
  const [checked, setChecked] = useState(/** @type {any} */ (null));
  const rested = useRested(config, 400);
  const size = files.reduce((sum, file) => sum + file.size, 0);
  const body = () => ({ config: rested, template: template || undefined, projectId: query.get("project") ? Number(query.get("project")) : undefined });
  useEffect(() => {
    let isLate = false;
    sessionStorage.setItem("launch", rested);
    check(body()).then((found) => !isLate && setChecked(found));
    return () => {
      isLate = true;
    };
  }, [rested, template]);
  const start = async () => {
    const modelDefinition = await Promise.all(files.map(packed));
    const answer = await post("experiments", { ...body(), config, modelDefinition, activate: true });
    go(`/det/experiments/${answer.experiment.id}`);
  };
  const choose = async (/** @type {any} */ event) => {
    const found = [...event.target.files].map((file) => ({ file, size: file.size, path: (file.webkitRelativePath || file.name).split("/").slice(file.webkitRelativePath ? 1 : 0).join("/") }));
    setFiles(found.filter((each) => !/(^|\/)(\.git|__pycache__|\.venv)\//.test(each.path)));
  };
  return html`<div class="stack"><${Head} title="New experiment" crumbs=${projects.data ? [[projects.data.project.workspaceName, `/det/workspaces/${projects.data.project.workspaceId}`], [projects.data.project.name, `/det/projects/${projects.data.project.id}`]] : []} />
    <div class="cards" style=${{ gridTemplateColumns: "repeat(auto-fit, minmax(min(100%, 460px), 1fr))" }}><section class="card stack">
      <${Asks}><${Field} label="Configuration (YAML)" name="config"><textarea rows="22" spellcheck="false" value=${config} onInput=${typed(setConfig)}></textarea></${Field}>
      <div class="row"><${Field} label="Template" name="template"><${Pick} value=${template} set=${setTemplate} options=${[["", "none"], ...(templates.data?.templates ?? []).map((/** @type {any} */ t) => [t.name, t.name])]} /></${Field}>
        <${Field} label="A folder with the code" name="modelDefinition"><input type="file" webkitdirectory multiple onChange=${choose} /></${Field}><${Field} label="or single files" name="files"><input type="file" multiple onChange=${choose} /></${Field}></div>
      ${files.length > 0 && html`<p class="muted">${many(files.length, "file")}, ${bytes(size)}: ${files.slice(0, 6).map((file) => file.path).join(", ")}${files.length > 6 ? ", …" : ""}</p>`}
      ${size > LARGEST && html`<p class="band bad">The files have ${bytes(size)}, the limit is ${bytes(LARGEST)}: leave data out, and mount it.</p>`}
      <div class="row actions"><${Do} kind="first" disabled=${!checked || checked.error || size > LARGEST} run=${start}>Start it</${Do}><span class="muted">${workspaces.error ? "" : "You can pause, fork and change it later."}</span></div></${Asks}></section>
    <section class="card stack" aria-live="polite"><h2>What it will do</h2>${!checked ? html`<div class="skeleton"></div>` : checked.error ? html`<div class="band bad" role="alert">${sentence(checked.error).split("\n").map((line) => html`<div key=${line}>${line}</div>`)}</div>` : html`<${Plan} checked=${checked} pools=${pools.data?.resourcePools ?? []} />`}</section></div></div>`;
}

/** The configuration with all defaults and the plan, or what is wrong with it. @param {any} body */
async function check(body) {
  try {
    return await post("undeterred/experiments/plan", body);
  } catch (error) {
    return { error };
  }
}

/** @param {{checked: any, pools: any[]}} props */
function Plan({ checked, pools }) {
  const { config, warnings, notices, unit, trials: groups } = checked;
  const trials = groups.reduce((/** @type {number} */ sum, /** @type {any} */ group) => sum + group.count, 0);
  const length = groups.reduce((/** @type {number} */ sum, /** @type {any} */ group) => sum + group.count * (group.length ?? 0), 0);
  const slots = config.resources?.slots_per_trial ?? 1;
  const pool = pools.find((each) => each.name === config.resources?.resource_pool) ?? pools.find((each) => each.defaultComputePool);
  const atOnce = config.searcher?.max_concurrent_trials || trials;
  const fits = pool && slots ? Math.floor(pool.slotsAvailable / slots) : atOnce;
  return html`<dl class="facts"><dt>Searcher</dt><dd>${config.searcher?.name}, ${config.searcher?.metric}</dd>
      <dt>Trials</dt><dd>${trials ? count(trials) : "as the search decides"}${trials ? `, at most ${Math.min(atOnce, trials)} at a time` : ""}</dd>
      <dt>Price</dt><dd>${length ? html`${count(length * slots)} slot-${unit} if all goes as planned (${count(length)} ${unit} of training on ${many(slots, "slot")})` : "not known beforehand"}</dd>
      <dt>Pool</dt><dd>${pool ? `${pool.name}: ${pool.slotsAvailable} slots, ${pool.slotsUsed} in use, ${pool.stats?.queuedCount ?? 0} waiting; ${many(Math.min(fits, trials || fits), "trial")} can run at once` : "none"}</dd>
      <dt>Entrypoint</dt><dd><code>${Array.isArray(config.entrypoint) ? config.entrypoint.join(" ") : config.entrypoint}</code></dd></dl>
    ${groups.length > 0 && html`<table><caption class="visually-hidden">how many trials train for how long</caption><thead><tr><th class="num">Trials</th><th class="num">Train for</th></tr></thead><tbody>${groups.map((/** @type {any} */ group, /** @type {number} */ i) => html`<tr key=${i}><td class="num">${group.count}</td><td class="num">${group.length === null ? "the whole length" : `${count(group.length)} ${unit}`}</td></tr>`)}</tbody></table>`}
    ${notices.map((/** @type {string} */ text) => html`<p class="band" key=${text}>${text}</p>`)}${warnings.map((/** @type {string} */ text) => html`<p class="band" key=${text}>${text.startsWith("LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED") ? "It asks for more slots than the pool has now: it will wait." : text}</p>`)}
    <details><summary>The whole configuration, with defaults</summary><pre class="code">${JSON.stringify(config, null, 2)}</pre></details>`;
}

/** A file as the API takes it. @param {any} each */
async function packed({ file, path }) {
  const raw = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let i = 0; i < raw.length; i += 32_768) text += String.fromCharCode(...raw.subarray(i, i + 32_768));
  return { path, type: 48, content: btoa(text), mode: 0o100644, mtime: String(Math.floor(file.lastModified / 1000)), uid: 0, gid: 0 };
}
