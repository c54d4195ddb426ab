// The grids of experiments and of runs: what its address says, as the API takes it; columns of hyperparameters and metrics; colours.
import { hparam, metric } from "./format.js";

export const MOST_PINNED = 20;
export const MOST_COLUMNS = 30;
export const MOST_CONDITIONS = 50;
export const DEEPEST = 5;
export const STATES = ["ACTIVE", "PAUSED", "COMPLETED", "CANCELED", "ERROR"];

/**
 * A condition is a column, an operator and a value; a group joins others.
 * @typedef {[string, string, any]} Condition
 * @typedef {{and: (Condition | Group)[]} | {or: (Condition | Group)[]}} Group
 */

/** Operators by what a column holds, with their words. @type {Record<string, [string, string][]>} */
export const OPERATORS = {
  number: [["=", "="], ["!=", "≠"], ["<", "<"], ["<=", "≤"], [">", ">"], [">=", "≥"], ["isEmpty", "is empty"], ["notEmpty", "is not empty"]],
  text: [["contains", "contains"], ["notContains", "does not contain"], ["=", "="], ["!=", "≠"], ["isEmpty", "is empty"], ["notEmpty", "is not empty"]],
  date: [[">=", "since"], ["<", "before"], ["isEmpty", "is empty"], ["notEmpty", "is not empty"]],
  choice: [["=", "is"], ["!=", "is not"]],
};
/** Columns of which a row has one of several values. */
const CHOICES = ["state", "tags", "user", "archived"];

/** @param {{column: string, type: string} | undefined} column */
export const kindOf = (column) => (!column ? "text" : CHOICES.includes(column.column) ? "choice" : column.type === "COLUMN_TYPE_NUMBER" ? "number" : column.type === "COLUMN_TYPE_DATE" ? "date" : "text");

/** @param {any} group @returns {["and" | "or", any[]]} */
export const partsOf = (group) => ("or" in group ? ["or", group.or] : ["and", group.and]);

/** The group that an address names; null if it can't be read. @param {string} text @returns {Group | null} */
export function readGroup(text) {
  if (!text) return { and: [] };
  try {
    const group = JSON.parse(text);
    return isGroup(group, 1) && conditions(group) <= MOST_CONDITIONS ? group : null;
  } catch {
    return null; // whoever wrote the address by hand sees that it can't be read
  }
}

/** @param {any} node @param {number} depth @returns {boolean} */
function isGroup(node, depth) {
  if (depth > DEEPEST || typeof node !== "object" || node === null || Array.isArray(node)) return false;
  const children = node.and ?? node.or;
  return Array.isArray(children) && Object.keys(node).length === 1 && children.every((each) => (Array.isArray(each) ? each.length >= 2 && each.length <= 3 && each.slice(0, 2).every((part) => typeof part === "string") : isGroup(each, depth + 1)));
}

/** How many conditions it has. @param {any} node @returns {number} */
export const conditions = (node) => (Array.isArray(node) ? 1 : partsOf(node)[1].reduce((sum, each) => sum + conditions(each), 0));

/** As `api.queries.filters` reads it. @param {any} node @returns {any} */
export function toApi(node) {
  if (Array.isArray(node)) return { kind: "field", columnName: node[0], operator: node[1], value: node[2] };
  const [conjunction, children] = partsOf(node);
  return { kind: "group", conjunction, children: children.map(toApi) };
}

/** In words. @param {any} node @param {boolean} [isInner] @returns {string} */
export function told(node, isInner = false) {
  if (Array.isArray(node)) {
    const word = Object.values(OPERATORS).flat().find(([operator]) => operator === node[1])?.[1] ?? node[1];
    return `${node[0]} ${word}${node[2] === undefined || node[2] === "" ? "" : ` ${node[2]}`}`;
  }
  const [conjunction, children] = partsOf(node);
  const text = children.map((each) => told(each, true)).join(` ${conjunction} `);
  return isInner && children.length > 1 ? `(${text})` : text;
}

/** The filter of a request: what is chosen above the grid, and the conditions of the dialog. @param {[string, string]} named a column, and a part of it @param {Record<string, string>} simple @param {Group} group */
export function requestFilter([column, part], { state, label, archived }, group) {
  const children = [part && [column, "contains", part], state && ["state", "=", state], label && ["tags", "contains", label], archived !== "all" && ["archived", "=", String(archived === "only")]]
    .filter(Boolean).map(toApi);
  if (conditions(group)) children.push(toApi(group));
  return JSON.stringify({ filterGroup: { kind: "group", conjunction: "and", children }, showArchived: true });
}

/** `-startTime,name` as the API writes it. @param {string} sort */
export const requestSort = (sort) => sort.split(",").filter(Boolean).slice(0, 10).map((key) => `${key.replace(/^-/, "")}=${key.startsWith("-") ? "desc" : "asc"}`).join(",");

/** Several values in one of the address. @param {string} text @param {number} most */
export const listOf = (text, most) => text.split(",").filter(Boolean).slice(0, most).map(decoded);
/** @param {Iterable<any>} list */
export const textOf = (list) => [...list].map(encodeURIComponent).join(",");

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** A column of a hyperparameter or of a part of a metric. @param {string} name @param {number} i its place among those that were asked for @returns {any} */
export function extraColumn(name, i) {
  const valueOf = (/** @type {any} */ row) => row.values[i];
  const isHp = name.startsWith("hp.");
  return {
    key: name, title: isHp ? name.slice(3) : name.replace(/\.(last|mean|min|max)$/, " $1"), hint: `${name}, of the best trial`, num: true,
    sort: /[,=]/.test(name) ? undefined : name, value: valueOf,
    cell: (/** @type {any} */ row) => { const value = valueOf(row); return value === undefined || value === null ? "–" : isHp ? hparam(value) : metric(value); },
  };
}

/** Numbers of the columns of all grids, to be coloured by. @type {Record<string, (row: any) => any>} */
export const NUMBERS = {
  best: (row) => row.bestTrialSearcherMetric, trials: (row) => row.numTrials, progress: (row) => row.progress,
  duration: (row) => (Date.parse(row.endTime ?? new Date().toISOString()) - Date.parse(row.startTime)) / 1000,
};

/** Least and greatest number of a column, and how strongly a row's cell is coloured: 4 to 40 %. @param {any[]} rows @param {(row: any) => any} value */
export function heatOf(rows, value) {
  const numbers = rows.map(value).filter((/** @type {any} */ each) => typeof each === "number" && Number.isFinite(each));
  const low = numbers.reduce((a, b) => Math.min(a, b), Infinity);
  const high = numbers.reduce((a, b) => Math.max(a, b), -Infinity);
  const heat = (/** @type {any} */ row) => {
    const own = value(row);
    return typeof own === "number" && Number.isFinite(own) ? `${(4 + 36 * (high > low ? (own - low) / (high - low) : 0.5)).toFixed(1)}%` : "";
  };
  return { low, high, heat };
}
