// A form in a dialog, made from a list of its fields: what most changes ask for.
import { cloneElement, html, useContext, useId, useState } from "./html.js";
import { Around, Dialog, Do, Pick, sentence, typed } from "./ui.js";

export { Pick, typed };

/** An input with its label, and why what is in it was refused. @param {{label: string, name: string, children?: any}} props `name`: as the API calls it; several with spaces between */
export function Field({ label, name, children }) {
  const why = useContext(Around).at[name];
  const id = useId();
  return html`<div><label class="field">${label}${cloneElement(children, { name, "aria-invalid": why ? "true" : null, "aria-describedby": why ? id : null })}</label>${why && html`<p class="refused" id=${id} role="alert">${sentence(why)}</p>`}</div>`;
}

/**
 * `value`: what is there now. `at`: what the API calls it, if not by its key. `json`: it is written and sent as JSON. `lines`: a list, one entry a line.
 * @typedef {{key: string, label: string, at?: string, type?: "text" | "number" | "password" | "url" | "datetime-local" | "area" | "json" | "lines" | "check" | "choice", value?: any,
 *   options?: any[], placeholder?: string, min?: number, max?: number, rows?: number, required?: boolean}} Asked
 */

/** As it stands in its input. @param {Asked} field */
function written({ type, value }) {
  if (type === "check") return Boolean(value);
  if (value === null || value === undefined) return "";
  if (type === "json") return JSON.stringify(value, null, 2);
  return type === "lines" ? value.join("\n") : String(value);
}

/** As the API takes it. @param {Asked} field @param {any} text */
export function read({ type, key, at = key }, text) {
  if (type === "number") return text === "" ? null : Number(text);
  if (type === "lines") return text.split("\n").map((/** @type {string} */ line) => line.trim()).filter(Boolean);
  if (type !== "json") return type === "check" || type === "password" ? text : text.trim();
  if (!text.trim()) return null;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${at}: it is no JSON: ${/** @type {Error} */ (error).message}`);
  }
}

/**
 * `run` receives what differs from what was there; with `whole` all of it.
 * @param {{title: string, fields: Asked[], run: (given: Record<string, any>) => Promise<any>, onClose: () => void, confirm?: string, done?: string, wide?: boolean, danger?: boolean, whole?: boolean, children?: any}} props
 */
export function Form({ title, fields, run, onClose, confirm = "Save", done = "Saved", wide, danger, whole, children }) {
  const [values, setValues] = useState(() => Object.fromEntries(fields.map((field) => [field.key, written(field)])));
  const changed = fields.filter((field) => values[field.key] !== written(field));
  const isReady = (whole || changed.length > 0) && fields.every((field) => !field.required || String(values[field.key]).trim());
  const save = async () => {
    await run(Object.fromEntries((whole ? fields : changed).map((field) => [field.key, read(field, values[field.key])])));
    onClose();
  };
  return html`<${Dialog} title=${title} onClose=${onClose} wide=${wide}>${children}
    ${fields.map((field) => html`<${Input} key=${field.key} field=${field} value=${values[field.key]} onChange=${(/** @type {any} */ value) => setValues((all) => ({ ...all, [field.key]: value }))} />`)}
    <div class="actions"><button onClick=${onClose}>Leave it</button><${Do} kind=${danger ? "danger" : "first"} disabled=${!isReady} run=${save} done=${done}>${confirm}</${Do}></div></${Dialog}>`;
}

/** @param {{field: Asked, value: any, onChange: (value: any) => void}} props */
function Input({ field: { key, at = key, label, type = "text", options = [], placeholder, min, max, rows = 8 }, value, onChange }) {
  if (type === "check") return html`<label class="row tight"><input type="checkbox" checked=${value} onChange=${(/** @type {any} */ event) => onChange(event.target.checked)} />${label}</label>`;
  return html`<${Field} label=${label} name=${at}>${
    type === "choice" ? html`<${Pick} options=${options} value=${value} set=${onChange} />`
    : type === "area" || type === "json" || type === "lines" ? html`<textarea rows=${type === "lines" ? 3 : rows} spellcheck="false" placeholder=${placeholder} value=${value} onInput=${typed(onChange)}></textarea>`
    : html`<input type=${type} min=${min} max=${max} step=${type === "number" ? "any" : null} placeholder=${placeholder} autocomplete=${type === "password" ? "new-password" : "off"} value=${value} onInput=${typed(onChange)} />`}</${Field}>`;
}

/**
 * A button that opens such a form.
 * @param {{label: string, kind?: string, about?: string, disabled?: boolean, title: string, fields: Asked[], run: (given: Record<string, any>) => Promise<any>, confirm?: string, done?: string, wide?: boolean, danger?: boolean, whole?: boolean, children?: any}} props `about`: its name for screen readers, where several look the same
 */
export function FormButton({ label, kind = "", about, disabled, ...form }) {
  const [open, setOpen] = useState(false);
  return html`<button class=${kind} aria-label=${about ?? null} disabled=${disabled} onClick=${() => setOpen(true)}>${label}</button>${open && html`<${Form} ...${form} onClose=${() => setOpen(false)} />`}`;
}
