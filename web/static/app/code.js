// The code of an experiment: its files, its configuration, and what differs from another experiment.
import { html, useState } from "./html.js";
import { post } from "./api.js";
import { useGet } from "./data.js";
import { bytes } from "./format.js";
import { useQuery } from "./router.js";
import { Failed, Load } from "./ui.js";
import { differences } from "./diff.js";

const LARGEST = 512 * 1024;

/** @param {{e: any}} props */
export function Code({ e }) {
  const tree = useGet(`experiments/${e.id}/file_tree`);
  const [file, setFile] = useQuery("file");
  const [other, setOther] = useQuery("with", e.forkedFrom ? String(e.forkedFrom) : "");
  return html`<div class="stack"><form class="row" onSubmit=${(/** @type {any} */ event) => { event.preventDefault(); setOther(String(new FormData(event.target).get("other") ?? "")); }}>
      <label class="row tight"><span class="muted">compare with experiment</span><input name="other" inputmode="numeric" size="6" value=${other} /></label><button>Compare</button>${other && html`<button type="button" onClick=${() => setOther("")}>Do not compare</button>`}</form>
    <${Load} of=${tree}>${(/** @type {any} */ { files }) => html`<div class="row" style=${{ alignItems: "flex-start" }}>
      <nav aria-label="files" class="card" style=${{ maxWidth: "280px" }}><ul><li><a href="?" aria-current=${file ? null : "page"} onClick=${(/** @type {any} */ event) => { event.preventDefault(); setFile(""); }}>configuration</a></li>${flat(files).map((each) => html`<li key=${each.path} style=${{ paddingLeft: `${8 * (each.path.split("/").length - 1)}px` }}>
        <a href="?file=${encodeURIComponent(each.path)}" aria-current=${file === each.path ? "page" : null} onClick=${(/** @type {any} */ event) => { event.preventDefault(); setFile(each.path); }}>${each.name}</a> <span class="muted">${bytes(each.contentLength)}</span></li>`)}</ul></nav>
      <div class="grow">${file ? html`<${File} key="${file}|${other}" e=${e} path=${file} size=${flat(files).find((each) => each.path === file)?.contentLength ?? 0} other=${other} />` : html`<${Configuration} key=${other} e=${e} other=${other} />`}</div></div>`}</${Load}></div>`;
}

/** @param {any[]} files @returns {any[]} */
const flat = (files) => files.flatMap((each) => (each.isDir ? flat(each.files ?? []) : [each]));

/** @param {{e: any, other: string}} props */
function Configuration({ e, other }) {
  const theirs = useGet(other ? `experiments/${other}` : null);
  if (!other) return html`<pre class="code" tabindex="0">${e.originalConfig}</pre>`;
  return html`<${Load} of=${theirs}>${(/** @type {any} */ data) => html`<${Difference} before=${data.experiment.originalConfig} after=${e.originalConfig} from=${other} to=${e.id} />`}</${Load}>`;
}

/** @param {{e: any, path: string, size: number, other: string}} props */
function File({ e, path, size, other }) {
  const [text, setText] = useState(/** @type {any} */ (null));
  const [theirs, setTheirs] = useState(/** @type {string | null} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  if (size > LARGEST) return html`<p>${path} has ${bytes(size)}: download the code to read it.</p>`;
  if (text === null && !error) {
    setText("");
    content(e.id, path).then(setText, setError);
    if (other) content(other, path).then(setTheirs, () => setTheirs(""));
  }
  if (error) return html`<${Failed} error=${error} />`;
  if (other && theirs !== null) return html`<${Difference} before=${theirs} after=${text ?? ""} from=${other} to=${e.id} />`;
  return html`<pre class="code" tabindex="0">${text}</pre>`;
}

/** @param {number | string} id @param {string} path */
async function content(id, path) {
  const { file } = await post(`experiments/${id}/file`, { experimentId: Number(id), path });
  const raw = Uint8Array.from(atob(file), (c) => c.charCodeAt(0));
  return new TextDecoder().decode(raw);
}

/** @param {{before: string, after: string, from: any, to: any}} props */
export function Difference({ before, after, from, to }) {
  const lines = differences(before, after);
  const changed = lines.filter(([kind]) => kind !== " ").length;
  return html`<p class="muted">${changed ? `${changed} lines differ: − experiment ${from}, + experiment ${to}` : "No difference."}</p><pre class="code diff" tabindex="0">${lines.map(([kind, line], i) => html`<span key=${i} class=${kind === "+" ? "add" : kind === "-" ? "del" : ""}>${kind} ${line}</span>`)}</pre>`;
}
