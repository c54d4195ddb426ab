// Pieces that all pages share.
import { createContext, html, useContext, useEffect, useRef, useState } from "./html.js";
import { Problem } from "./api.js";
import { ago, exact, stateOf } from "./format.js";
import { useTick } from "./data.js";

// -- states ----------------------------------------------------------------------------------------------------------

/** Colour and shape by meaning: shapes tell them apart without colour. */
const STATES = /** @type {Record<string, [string, string]>} */ ({
  RUNNING: ["run", "dot"], STARTING: ["run", "half"], PULLING: ["run", "half"], ACTIVE: ["run", "dot"], ASSIGNED: ["run", "half"], READY: ["ok", "dot"],
  QUEUED: ["wait", "ring"], SCHEDULED: ["run", "dot"], WAITING: ["wait", "ring"], PAUSED: ["wait", "pause"], STOPPING_PAUSED: ["wait", "pause"],
  SCHEDULED_BACKFILLED: ["run", "dot"],
  COMPLETED: ["ok", "check"], STOPPING_COMPLETED: ["ok", "check"], PARTIALLY_DELETED: ["off", "square"],
  CANCELED: ["off", "square"], STOPPING_CANCELED: ["off", "square"], STOPPING_KILLED: ["off", "square"], DELETED: ["off", "square"], DELETING: ["off", "square"],
  ERROR: ["bad", "cross"], STOPPING_ERROR: ["bad", "cross"], DELETE_FAILED: ["bad", "cross"], TERMINATED: ["off", "square"], TERMINATING: ["off", "square"],
});
const SHAPES = /** @type {Record<string, any>} */ ({
  dot: html`<circle cx="6" cy="6" r="4.5" fill="currentColor" />`,
  half: html`<path d="M6 1.5a4.5 4.5 0 0 1 0 9z" fill="currentColor" /><circle cx="6" cy="6" r="4.5" fill="none" stroke="currentColor" stroke-width="1.5" />`,
  ring: html`<circle cx="6" cy="6" r="4.2" fill="none" stroke="currentColor" stroke-width="1.8" />`,
  pause: html`<path d="M3 2h2.2v8H3zM6.8 2H9v8H6.8z" fill="currentColor" />`,
  check: html`<path d="M2 6.5 5 9.5 10 3" fill="none" stroke="currentColor" stroke-width="2" />`,
  square: html`<path d="M2.5 2.5h7v7h-7z" fill="none" stroke="currentColor" stroke-width="1.8" />`,
  cross: html`<path d="M2.5 2.5l7 7M9.5 2.5l-7 7" stroke="currentColor" stroke-width="2" />`,
});

/** A state as a badge. @param {{state: string}} props */
export function State({ state }) {
  const name = stateOf(state);
  const [kind, shape] = STATES[name] ?? ["off", "ring"];
  return html`<span class="state ${kind}"><svg viewBox="0 0 12 12" aria-hidden="true">${SHAPES[shape]}</svg>${name.toLowerCase().replaceAll("_", " ")}</span>`;
}

/** @param {{share: number | null | undefined}} props 0 to 1 */
export function Progress({ share }) {
  const percent = Math.round(100 * Math.min(1, Math.max(0, share ?? 0)));
  return html`<div class="bar" role="progressbar" aria-label="progress" aria-valuemin="0" aria-valuemax="100" aria-valuenow=${percent} title="${percent} %">
    <div style=${{ width: `${percent}%` }}></div></div>`;
}

/** A moment: relative, the exact one on hover. @param {{at: string | null | undefined}} props */
export function When({ at }) {
  useTick(30_000);
  if (!at) return html`<span class="muted">–</span>`;
  return html`<time datetime=${at} title=${exact(at)}>${ago(at)}</time>`;
}

// -- what is there, or not -------------------------------------------------------------------------------------------

/** Shows data, or why there is none. `page`: it is all that the page shows. @param {{of: any, children: (data: any) => any, height?: number, page?: boolean}} props */
export function Load({ of, children, height = 120, page }) {
  if (of.data !== undefined)
    // That the API is away, the frame says once for the whole page.
    return html`${of.error && of.error.status !== 0 && html`<${Band} bad>${sentence(of.error)} What you see is from before. <button class="small" onClick=${of.reload}>Try again</button></${Band}>`}${children(of.data)}`;
  if (of.error) return html`<${Failed} error=${of.error} again=${of.reload} page=${page} />`;
  return html`<div class="skeleton" style=${{ height: `${height}px` }} role="status"><span class="visually-hidden">loading</span></div>`;
}

/** @param {{error: Problem, again?: () => void, page?: boolean}} props */
export function Failed({ error, again, page }) {
  const title = error.status === 404 ? "Not found" : error.status === 403 ? "Not allowed" : "That did not work";
  return html`<div class="empty" role="alert">${page ? html`<h1>${title}</h1>` : html`<h2>${title}</h2>`}<p>${sentence(error)}</p>${again && error.status !== 404 && html`<button onClick=${again}>Try again</button>`}</div>`;
}

/** @param {{title: string, children?: any}} props */
export const Empty = ({ title, children }) => html`<div class="empty"><h2>${title}</h2>${children}</div>`;

/** @param {{bad?: boolean, children?: any}} props */
export const Band = ({ bad, children }) => html`<div class="band ${bad ? "bad" : ""}" role="status">${children}</div>`;

/** An error as a sentence. @param {any} error */
export function sentence(error) {
  const text = String(error?.message ?? error);
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}

// -- getting around --------------------------------------------------------------------------------------------------

/** @param {{title: any, crumbs?: [string, string][], children?: any, below?: any}} props */
export function Head({ title, crumbs = [], children, below }) {
  useEffect(() => {
    document.title = typeof title === "string" ? `${title} · Undeterred` : "Undeterred";
  }, [title]);
  return html`<header class="stack tight">
    ${crumbs.length > 0 && html`<nav aria-label="breadcrumbs"><ol class="crumbs">${crumbs.map(([text, to]) => html`<li><a href=${to}>${text}</a></li>`)}</ol></nav>`}
    <div class="row spread"><h1>${title}</h1><div class="row">${children}</div></div>${below}</header>`;
}

/** @param {{base: string, now: string, tabs: [string, string, any?][]}} props */
export function Tabs({ base, now, tabs }) {
  return html`<nav class="tabs" aria-label="parts of this page">${tabs.map(
    ([key, text, n]) => html`<a key=${key} href="${base}/${key}" aria-current=${key === now ? "page" : null}>${text}${n !== undefined && n !== null ? html` <span class="muted">${n}</span>` : ""}</a>`,
  )}</nav>`;
}

// -- tables ----------------------------------------------------------------------------------------------------------

/**
 * @typedef {{key: string, title: string, cell: (row: any) => any, num?: boolean, sort?: string, hint?: string, wrap?: boolean, heat?: (row: any) => string}} Column
 * @param {{columns: Column[], rows: any[], id: (row: any) => any, label: string, sort?: string, onSort?: (sort: string) => void, sorts?: boolean,
 *   chosen?: Set<any>, onChoose?: (chosen: Set<any>) => void, rowClass?: (row: any) => string, empty?: any}} props
 *   `sort`: `key` or `-key`; with `sorts` several, with commas between; `heat`: how strongly a cell is coloured, `0%` to `100%`
 */
export function Table({ columns, rows, id, label, sort = "", onSort, sorts, chosen, onChoose, rowClass, empty }) {
  if (!rows.length && empty) return empty;
  const toggle = (/** @type {any} */ key) => {
    const next = new Set(chosen);
    if (!next.delete(key)) next.add(key);
    onChoose?.(next);
  };
  const keys = sort.split(",").filter(Boolean);
  const all = rows.length > 0 && rows.every((row) => chosen?.has(id(row)));
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table>
    <caption class="visually-hidden">${label}</caption>
    <thead><tr>
      ${onChoose && html`<th><input type="checkbox" aria-label="choose all" checked=${all} onChange=${() => onChoose(new Set(all ? [] : rows.map(id)))} /></th>`}
      ${columns.map((column) => {
        const place = keys.findIndex((each) => each.replace(/^-/, "") === column.sort);
        const down = keys[place]?.startsWith("-");
        const next = place >= 0 && !down ? `-${column.sort}` : column.sort ?? "";
        const more = place < 0 ? [...keys, next] : keys.map((each, i) => (i === place ? next : each));
        return html`<th key=${column.key} class=${column.num ? "num" : ""} title=${column.hint ?? null} aria-sort=${place < 0 ? null : down ? "descending" : "ascending"}>
          ${column.sort && onSort
            ? html`<button onClick=${(/** @type {MouseEvent} */ event) => onSort(sorts && event.shiftKey ? more.join() : next)}>${column.title}<span aria-hidden="true">${place < 0 ? "" : down ? "▾" : "▴"}${keys.length > 1 && place >= 0 ? place + 1 : ""}</span></button>`
            : column.title || html`<span class="visually-hidden">${column.key === "do" ? "actions" : column.key}</span>`}</th>`;
      })}
    </tr></thead>
    <tbody>${rows.map((row) => {
      const key = id(row);
      return html`<tr key=${key} class="${chosen?.has(key) ? "chosen" : ""} ${rowClass?.(row) ?? ""}">
        ${onChoose && html`<td><input type="checkbox" aria-label="choose ${key}" checked=${Boolean(chosen?.has(key))} onChange=${() => toggle(key)} /></td>`}
        ${columns.map((column) => {
          const heat = column.heat?.(row);
          return html`<td key=${column.key} class="${column.num ? "num" : ""} ${column.wrap ? "wrap" : ""} ${heat ? "heat" : ""}" style=${heat ? { "--heat": heat } : null}>${column.cell(row)}</td>`;
        })}</tr>`;
    })}</tbody></table></div>`;
}

/** Pages of a list, in the address. `counted`: behind a page no more rows than that were counted. @param {{total: number, offset: number, limit: number, counted?: number, onOffset: (offset: number) => void}} props */
export function Pages({ total, offset, limit, counted = Infinity, onOffset }) {
  if (total <= limit && !offset) return null;
  return html`<nav class="row" aria-label="pages"><button disabled=${offset <= 0} onClick=${() => onOffset(Math.max(0, offset - limit))}>Previous</button>
    <span class="muted">${offset + 1}–${Math.min(total, offset + limit)} of ${total - offset - limit >= counted ? "more than " : ""}${total.toLocaleString("en-US")}</span>
    <button disabled=${offset + limit >= total} onClick=${() => onOffset(offset + limit)}>Next</button></nav>`;
}

// -- doing something -------------------------------------------------------------------------------------------------

/** @type {Set<(toast: {text: string, bad: boolean, id: number}) => void>} */
const listeners = new Set();
let toasts = 0;
/** Say something that needs no answer. @param {string} text @param {boolean} [bad] */
export const toast = (text, bad = false) => listeners.forEach((tell) => tell({ text, bad, id: ++toasts }));

export function Toasts() {
  const [shown, setShown] = useState(/** @type {any[]} */ ([]));
  useEffect(() => {
    const tell = (/** @type {any} */ one) => {
      setShown((all) => [...all.slice(-3), one]);
      setTimeout(() => setShown((all) => all.filter((each) => each.id !== one.id)), one.bad ? 12_000 : 5000);
    };
    listeners.add(tell);
    return () => void listeners.delete(tell);
  }, []);
  return html`<div class="toasts" aria-live="polite">${shown.map((one) => html`<div key=${one.id} class="toast ${one.bad ? "bad" : ""}">${one.text}</div>`)}</div>`;
}

/** Do it, say that it is done or why not. Returns whether it was. @param {() => Promise<any>} work @param {string} [done] @param {(error: any) => void} [refused] says why not, in place of a toast */
export async function attempt(work, done, refused = (error) => error && toast(sentence(error), true)) {
  refused(null);
  try {
    await work();
    if (done) toast(done);
    return true;
  } catch (error) {
    refused(error);
    return false;
  }
}

/** A button that does something once at a time. @param {{run: () => Promise<any>, done?: string, kind?: string, children?: any, disabled?: boolean, title?: string}} props */
export function Do({ run, done, kind = "", children, disabled, title }) {
  const [busy, setBusy] = useState(false);
  const { refused } = useContext(Around);
  const click = async () => {
    setBusy(true);
    await attempt(run, done, refused);
    setBusy(false);
  };
  return html`<button class=${kind} title=${title ?? null} disabled=${busy || disabled} onClick=${click}>${children}</button>`;
}

const NOTHING = { at: /** @type {Record<string, string>} */ ({}), rest: "" };
export const Around = createContext(/** @type {any} */ (NOTHING));

/** A form: what the API refuses is said at the field that it names, the rest above the buttons. @param {{children?: any}} props */
export function Asks({ children }) {
  const box = useRef(/** @type {any} */ (null));
  const [said, setSaid] = useState(NOTHING);
  useEffect(() => box.current?.querySelector("[aria-invalid]")?.focus(), [said]);
  const refused = async (/** @type {any} */ error) => setSaid(error ? (await import("./refusals.js")).placed(error.message, [...box.current.querySelectorAll("[name]")].map((each) => each.name)) : NOTHING);
  return html`<${Around.Provider} value=${{ ...said, refused }}><div class="stack" ref=${box}>${children}${said.rest && html`<p class="band bad" role="alert">${sentence(said.rest)}</p>`}</div></${Around.Provider}>`;
}

/** A dialog that is open for as long as it is drawn. @param {{title: string, onClose: () => void, wide?: boolean, children?: any}} props */
export function Dialog({ title, onClose, wide, children }) {
  const element = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => {
    element.current?.showModal();
  }, []);
  return html`<dialog ref=${element} class=${wide ? "wide" : ""} aria-label=${title} onClose=${onClose}
    onClick=${(/** @type {MouseEvent} */ event) => event.target === element.current && element.current?.close()}>
    <div class="row spread"><h2>${title}</h2><button class="quiet" aria-label="close" onClick=${() => element.current?.close()}>✕</button></div><${Asks}>${children}</${Asks}></dialog>`;
}

/**
 * What can't be undone names what goes, and asks.
 * @param {{label: string, title: string, children?: any, confirm: string, run: () => Promise<any>, done?: string, kind?: string, disabled?: boolean}} props
 */
export function Confirm({ label, title, children, confirm, run, done, kind = "danger", disabled }) {
  const [open, setOpen] = useState(false);
  return html`<button class=${kind} disabled=${disabled} onClick=${() => setOpen(true)}>${label}</button>
    ${open && html`<${Dialog} title=${title} onClose=${() => setOpen(false)}>${children}
      <div class="actions"><button onClick=${() => setOpen(false)}>Keep it</button>
        <${Do} kind="danger" run=${async () => { await run(); setOpen(false); }} done=${done}>${confirm}</${Do}></div></${Dialog}>`}`;
}

/** What an input calls with what was typed or chosen. @param {(text: any) => void} set */
export const typed = (set) => (/** @type {any} */ event) => set(event.target.value);

/** One of a few; each with its key and its words. @param {{options: any[], value: any, set: (key: string) => void, [other: string]: any}} props */
export const Pick = ({ options, value, set, ...others }) => html`<select value=${value} onChange=${typed(set)} ...${others}>${options.map(([key, text]) => html`<option key=${key} value=${key} selected=${String(key) === String(value)}>${text}</option>`)}</select>`;

/** Choose one of a few. @param {{label: string, value: string, options: [string, string][], onChange: (value: string) => void}} props */
export const Choice = ({ label, value, options, onChange }) => html`<label class="row tight"><span class="muted">${label}</span>
  <${Pick} value=${value} set=${onChange} options=${options} /></label>`;

/** A line to type in; what was typed counts after a moment. @param {{label: string, value: string, onChange: (value: string) => void, placeholder?: string, type?: string}} props */
export function Search({ label, value, onChange, placeholder, type = "search" }) {
  const [text, setText] = useState(value);
  const timer = useRef(/** @type {number | undefined} */ (undefined));
  useEffect(() => setText(value), [value]);
  return html`<input type=${type} aria-label=${label} placeholder=${placeholder ?? label} value=${text} onInput=${(/** @type {any} */ event) => {
    const typed = event.target.value;
    setText(typed);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onChange(typed), 250);
  }} />`;
}
