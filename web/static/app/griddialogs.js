// Dialogs of the grids of experiments and of runs: conditions in groups, columns and colours, what is done with several at once.
import { html, useEffect, useState } from "./html.js";
import { post, put } from "./api.js";
import { useGet } from "./data.js";
import { Field, Form, Pick, typed } from "./form.js";
import { many } from "./format.js";
import { DEEPEST, MOST_COLUMNS, MOST_CONDITIONS, OPERATORS, STATES, conditions, kindOf, partsOf } from "./grid.js";
import { Choice, Dialog, Do, Search, Table, toast } from "./ui.js";

const MOST_SHOWN = 100;
const BARE = ["isEmpty", "notEmpty"];

/** Conditions, in groups joined by and / or. @param {{project: string, kind: import("./pages/project.js").Kind, group: any, onApply: (group: any) => void, onClose: () => void}} props */
export function Filters({ project, kind, group, onApply, onClose }) {
  const columns = useGet(`projects/${project}/columns?tableType=${kind.table}`);
  const [draft, setDraft] = useState(conditions(group) ? group : { and: [[kind.name, "contains", ""]] });
  const known = columns.data?.columns ?? [];
  return html`<${Dialog} title="Filter ${kind.noun}s" onClose=${onClose} wide>
    <datalist id="filter-columns">${known.map((/** @type {any} */ c) => html`<option key=${c.column} value=${c.column}>${c.displayName}</option>`)}</datalist>
    <${GroupEditor} group=${draft} first=${kind.name} columns=${known} depth=${1} isFull=${conditions(draft) >= MOST_CONDITIONS} onChange=${setDraft} />
    <div class="actions"><button onClick=${() => onApply({ and: [] })}>Clear</button><button onClick=${onClose}>Leave it</button><button class="first" onClick=${() => onApply(pruned(draft) ?? { and: [] })}>Apply</button></div></${Dialog}>`;
}

/** Without groups that have nothing in them. @param {any} node @returns {any} */
function pruned(node) {
  if (Array.isArray(node)) return BARE.includes(node[1]) || (node[2] !== undefined && node[2] !== "") ? node : null;
  const [conjunction, children] = partsOf(node);
  const kept = children.map(pruned).filter(Boolean);
  return kept.length ? { [conjunction]: kept } : null;
}

/** @param {{group: any, first: string, columns: any[], depth: number, isFull: boolean, onChange: (group: any) => void, onRemove?: () => void}} props */
function GroupEditor({ group, first, columns, depth, isFull, onChange, onRemove }) {
  const [conjunction, children] = partsOf(group);
  const set = (/** @type {any[]} */ next) => onChange({ [conjunction]: next });
  const change = (/** @type {number} */ i) => (/** @type {any} */ child) => set(children.map((each, k) => (k === i ? child : each)));
  const drop = (/** @type {number} */ i) => () => set(children.filter((_, k) => k !== i));
  return html`<fieldset class="group stack tight"><legend class="row tight"><${Choice} label="match" value=${conjunction} onChange=${(/** @type {string} */ next) => onChange({ [next]: children })} options=${[["and", "all of these"], ["or", "any of these"]]} />
      ${onRemove && html`<button class="quiet small" aria-label="remove the group" onClick=${onRemove}>✕</button>`}</legend>
    ${children.map((child, i) => Array.isArray(child) ? html`<${ConditionEditor} key=${i} condition=${child} columns=${columns} onChange=${change(i)} onRemove=${drop(i)} />`
      : html`<${GroupEditor} key=${i} group=${child} first=${first} columns=${columns} depth=${depth + 1} isFull=${isFull} onChange=${change(i)} onRemove=${drop(i)} />`)}
    <div class="row"><button class="small" disabled=${isFull} onClick=${() => set([...children, [first, "contains", ""]])}>Add a condition</button>
      ${depth < DEEPEST && html`<button class="small" disabled=${isFull} onClick=${() => set([...children, { [conjunction === "and" ? "or" : "and"]: [[first, "contains", ""]] }])}>Add a group</button>`}</div></fieldset>`;
}

/** @param {{condition: any, columns: any[], onChange: (condition: any) => void, onRemove: () => void}} props */
function ConditionEditor({ condition: [column, operator, value], columns, onChange, onRemove }) {
  const [typing, setTyping] = useState(column); // a name that is half typed survives that the columns arrive
  useEffect(() => setTyping(column), [column]);
  const kind = kindOf(columns.find((each) => each.column === column));
  const operators = OPERATORS[kind];
  const rename = (/** @type {string} */ text) => {
    const name = text.trim();
    const next = kindOf(columns.find((each) => each.column === name));
    onChange(next === kind ? [name, operator, value] : [name, OPERATORS[next][0][0], name === "state" ? STATES[0] : name === "archived" ? "false" : ""]);
  };
  const type = (/** @type {string} */ text) => onChange([column, operator, kind === "date" ? (text ? new Date(text).toISOString() : "") : kind === "number" && text.trim() && Number.isFinite(Number(text)) ? Number(text) : text]);
  return html`<div class="row tight"><input list="filter-columns" aria-label="column" maxlength="1000" value=${typing} onInput=${typed(setTyping)} onChange=${typed(rename)} />
    <${Pick} aria-label="operator" value=${operator} set=${(/** @type {string} */ next) => onChange([column, next, value])} options=${operators} />
    ${BARE.includes(operator) ? null
      : column === "state" || column === "archived" ? html`<${Pick} aria-label="value" value=${value} set=${type} options=${(column === "state" ? STATES : ["false", "true"]).map((each) => [each, each.toLowerCase()])} />`
      : html`<input aria-label="value" maxlength="1000" type=${kind === "date" ? "datetime-local" : "text"} inputmode=${kind === "number" ? "decimal" : null} value=${kind === "date" ? local(value) : value ?? ""} onInput=${typed(type)} />`}
    <button class="quiet small" aria-label="remove the condition" onClick=${onRemove}>✕</button></div>`;
}

/** As such an input has it: in the reader's time. @param {string} time */
function local(time) {
  const at = new Date(time);
  return Number.isNaN(at.getTime()) ? "" : new Date(at.getTime() - 60_000 * at.getTimezoneOffset()).toISOString().slice(0, 16);
}

/** Which columns are shown, and which are coloured by value. @param {{project: string, kind: import("./pages/project.js").Kind, hidden: Set<string>, extra: string[], heat: Set<string>, onChange: (hidden: Set<string>, extra: string[], heat: Set<string>) => void, onClose: () => void}} props */
export function Columns({ project, kind, hidden, extra, heat, onChange, onClose }) {
  const found = useGet(`projects/${project}/columns?tableType=${kind.table}`);
  const [text, setText] = useState("");
  const rows = [...kind.columns.map((c) => ({ key: c.key, title: c.title, isBase: true, isNumber: c.key in kind.numbers })),
    ...(found.data?.columns ?? []).filter((/** @type {any} */ c) => !/_(EXPERIMENT|RUN)$/.test(c.location)).map((/** @type {any} */ c) => ({ key: c.column, title: c.column, isBase: false, isNumber: c.type === "COLUMN_TYPE_NUMBER" }))];
  const matching = rows.filter((row) => row.title.toLowerCase().includes(text.toLowerCase()));
  const isShown = (/** @type {any} */ row) => (row.isBase ? !hidden.has(row.key) : extra.includes(row.key));
  const show = (/** @type {any} */ row) => () => {
    const next = new Set(hidden);
    if (row.isBase && !next.delete(row.key)) next.add(row.key);
    const others = row.isBase ? extra : extra.includes(row.key) ? extra.filter((each) => each !== row.key) : [...extra, row.key];
    onChange(next, others, heat);
  };
  const colour = (/** @type {any} */ row) => () => {
    const next = new Set(heat);
    if (!next.delete(row.key)) next.add(row.key);
    onChange(hidden, extra, next);
  };
  return html`<${Dialog} title="Columns" onClose=${onClose} wide><${Search} label="filter columns" value=${text} onChange=${setText} />
    <${Table} label="columns" rows=${matching.slice(0, MOST_SHOWN)} id=${(/** @type {any} */ row) => row.key} columns=${[
      { key: "title", title: "Column", cell: (/** @type {any} */ row) => row.title },
      { key: "show", title: "Shown", cell: (/** @type {any} */ row) => row.key !== "id" && html`<input type="checkbox" aria-label="show ${row.title}" checked=${isShown(row)} disabled=${!isShown(row) && !row.isBase && extra.length >= MOST_COLUMNS} onChange=${show(row)} />` },
      { key: "heat", title: "Coloured by value", cell: (/** @type {any} */ row) => row.isNumber && isShown(row) && html`<input type="checkbox" aria-label="colour ${row.title}" checked=${heat.has(row.key)} onChange=${colour(row)} />` },
    ]} />${matching.length > MOST_SHOWN && html`<p class="muted">${MOST_SHOWN} of ${many(matching.length, "column")}: filter for the others.</p>`}
    <div class="actions"><button class="first" onClick=${onClose}>Done</button></div></${Dialog}>`;
}

/** Say of many what went wrong with some. @param {string} what @param {{results: {id: number, error: string}[]}} answer */
function report(what, { results }) {
  const failed = results.filter((each) => each.error);
  toast(failed.length ? `${failed.length} of ${results.length}: experiment ${failed[0].id}: ${failed[0].error}` : `${what}: done for ${many(results.length, "experiment")}`, failed.length > 0);
}

/** @param {{project: string, ids: number[], onClose: () => void, reload: () => void}} props */
export function MoveMany({ project, ids, onClose, reload }) {
  const workspaces = useGet("workspaces?limit=500");
  const [workspace, setWorkspace] = useState("");
  const projects = useGet(workspace ? `workspaces/${workspace}/projects?limit=500` : null);
  const [target, setTarget] = useState("");
  const run = async () => {
    report("moved", await post(`projects/${project}/experiments/move`, { experimentIds: ids, destinationProjectId: Number(target) }));
    onClose();
    reload();
  };
  const options = (/** @type {any[]} */ list) => [["", "choose one"], ...list.map((each) => [each.id, each.name])];
  return html`<${Dialog} title="Move ${many(ids.length, "experiment")}" onClose=${onClose}>
    <${Field} label="Workspace" name="workspace"><${Pick} value=${workspace} set=${(/** @type {string} */ id) => { setWorkspace(id); setTarget(""); }} options=${options(workspaces.data?.workspaces ?? [])} /></${Field}>
    <${Field} label="Project" name="destinationProjectId project"><${Pick} value=${target} disabled=${!workspace} set=${setTarget} options=${options((projects.data?.projects ?? []).filter((/** @type {any} */ p) => String(p.id) !== project))} /></${Field}>
    <div class="actions"><button onClick=${onClose}>Leave it</button><${Do} kind="first" disabled=${!target} run=${run}>Move</${Do}></div></${Dialog}>`;
}

/** @param {{project: string, ids: number[], onClose: () => void}} props */
export const RetainMany = ({ project, ids, onClose }) => html`<${Form} title="How long logs of ${many(ids.length, "experiment")} are kept" onClose=${onClose} whole done="" fields=${[{ key: "numDays", label: "Days after a trial's end; -1: for good", type: "number", min: -1, max: 32_767, value: 30, required: true }]}
  run=${async (/** @type {any} */ given) => report("log retention", await put(`projects/${project}/experiments/retain_logs`, { experimentIds: ids, ...given }))} />`;
