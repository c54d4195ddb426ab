// Addresses: which page, and the state of it. Everything that a page shows follows from its address.
import { useEffect, useState } from "./html.js";

/** @typedef {{path: string, params: Record<string, string>, query: URLSearchParams}} Place */

/** @type {Set<() => void>} */
const watchers = new Set();
const changed = () => watchers.forEach((watch) => watch());
window.addEventListener("popstate", changed);

/** Go to an address of ours. @param {string} address @param {{replace?: boolean}} [options] */
export function go(address, options = {}) {
  const url = new URL(address, location.href);
  if (url.origin !== location.origin || !url.pathname.startsWith("/det")) {
    location.assign(safe(address));
    return;
  }
  if (options.replace) history.replaceState(null, "", url);
  else {
    history.pushState(null, "", url);
    scrollTo(0, 0);
  }
  changed();
}

/** An address of this origin; anything else leads to the start. @param {string | null} address */
export function safe(address) {
  try {
    const url = new URL(address ?? "/det/", location.origin);
    return url.origin === location.origin && /^https?:$/.test(url.protocol) ? url.pathname + url.search : "/det/";
  } catch {
    return "/det/";
  }
}

/** The address below `/det`. */
export const placeOf = () => location.pathname.replace(/^\/det/, "").replace(/\/+$/, "") || "/";

/** Where the browser is; the component is drawn again when that changes. */
export function useLocation() {
  const [, draw] = useState(0);
  useEffect(() => {
    const watch = () => draw((n) => n + 1);
    watchers.add(watch);
    return () => void watchers.delete(watch);
  }, []);
  return { path: placeOf(), query: new URLSearchParams(location.search) };
}

/**
 * One value of the address, and how to change it. The default is not written.
 * @param {string} name @param {string} [otherwise]
 * @returns {[string, (value: string) => void]}
 */
export function useQuery(name, otherwise = "") {
  const { query } = useLocation();
  return [query.get(name) ?? otherwise, (value) => setQuery({ [name]: value === otherwise ? "" : value })];
}

/** Change several values of the address at once. @param {Record<string, string>} values */
export function setQuery(values) {
  const url = new URL(location.href);
  for (const [name, value] of Object.entries(values))
    if (value === "") url.searchParams.delete(name);
    else url.searchParams.set(name, value);
  go(url.pathname + url.search, { replace: true });
}

/**
 * The first pattern that fits: `/experiments/:id/:tab?`.
 * @template T @param {string} path @param {[string, T][]} table
 * @returns {{page: T, params: Record<string, string>} | null}
 */
export function match(path, table) {
  for (const [pattern, page] of table) {
    const params = fits(path, pattern);
    if (params) return { page, params };
  }
  return null;
}

/** @param {string} path @param {string} pattern */
function fits(path, pattern) {
  const parts = path.split("/").filter(Boolean);
  const wanted = pattern.split("/").filter(Boolean);
  /** @type {Record<string, string>} */
  const params = {};
  for (let i = 0; i < wanted.length; i++) {
    const word = wanted[i];
    if (word === "*") return params;
    const name = word.startsWith(":") ? word.slice(1).replace("?", "") : null;
    if (parts[i] === undefined) {
      if (word.endsWith("?")) continue;
      return null;
    }
    if (name) params[name] = decode(parts[i]);
    else if (parts[i] !== word) return null;
  }
  return parts.length > wanted.length ? null : params;
}

/** @param {string} text */
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Follow links of ours without loading the page again. @param {MouseEvent} event */
export function onClick(event) {
  const link = event.target instanceof Element ? event.target.closest("a[href]") : null;
  if (!(link instanceof HTMLAnchorElement) || event.defaultPrevented || event.button !== 0) return;
  if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey || link.target || link.hasAttribute("download")) return;
  const url = new URL(link.href);
  if (url.origin !== location.origin || !url.pathname.startsWith("/det/") || url.pathname.startsWith("/det/assets/")) return;
  event.preventDefault();
  go(url.pathname + url.search + url.hash);
}
