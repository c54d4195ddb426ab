// Requests to the API. The session is a cookie that scripts can't read; the server checks where a request comes from.

/** What went wrong, in the server's words. `status` 0: it did not answer. */
export class Problem extends Error {
  /** @param {number} status @param {string} message */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** @type {() => void} */
let onLoggedOut = () => {};
/** The pages that this one is of, by their address. */
const OWN = new URL(import.meta.url).pathname.split("/").at(-3);
let onNewer = () => {};

/** Called when the server has other pages than this one. @param {() => void} handler */
export const whenNewer = (handler) => void (onNewer = handler);

/** Which pages the server has now. @param {string | null} digest */
export const serverHas = (digest) => void (digest && digest !== OWN && onNewer());

/** Called when the session has ended. @param {() => void} handler */
export function whenLoggedOut(handler) {
  onLoggedOut = handler;
}

/**
 * @param {string} method
 * @param {string} path below the origin
 * @param {unknown} [body] sent as JSON
 * @param {{signal?: AbortSignal, headers?: Record<string, string>}} [options]
 * @returns {Promise<any>}
 */
export async function call(method, path, body, options = {}) {
  const ready = early.get(keyOf(method, path, body));
  if (ready) {
    early.delete(keyOf(method, path, body));
    return ready;
  }
  /** @type {Record<string, string>} */
  const headers = { ...options.headers };
  if (method !== "GET") headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method,
      headers,
      body: method === "GET" ? undefined : JSON.stringify(body ?? {}),
      signal: options.signal,
      credentials: "same-origin",
    });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Problem(0, "the API does not answer");
  }
  serverHas(response.headers.get("x-undeterred-pages"));
  const text = await response.text();
  if (response.ok) return text ? JSON.parse(text) : {};
  const message = said(text) || `${response.status} ${response.statusText}`;
  if (response.status === 401 && !path.endsWith("/login")) onLoggedOut();
  throw new Problem(response.status, message);
}

/** What was asked for before the part of the page that shows it was there; each answer serves once. @type {Map<string, Promise<any>>} */
const early = new Map();
const EARLY_MS = 5000;
/** @param {string} method @param {string} path @param {unknown} [body] */
const keyOf = (method, path, body) => `${method} ${path} ${body === undefined ? "" : JSON.stringify(body)}`;

/**
 * Ask now for what the page reads first, while the session and its modules are still on their way.
 * @param {string} path below /api/v1 @param {unknown} [body] of a search that is a POST
 */
export function ahead(path, body) {
  const asked = /** @type {const} */ ([body === undefined ? "GET" : "POST", `/api/v1/${path}`, body]);
  const key = keyOf(...asked);
  const drop = () => void early.delete(key);
  const answer = call(...asked);
  early.set(key, answer);
  answer.catch(drop); // the page that needs it asks again, and shows what it is answered
  setTimeout(drop, EARLY_MS); // older than that it is no longer what the page would read
}

/** @param {string} text */
function said(text) {
  try {
    const answer = JSON.parse(text);
    return answer.error?.error || answer.message;
  } catch {
    return "";
  }
}

/** @param {string} path @param {AbortSignal} [signal] */
export const get = (path, signal) => call("GET", `/api/v1/${path}`, undefined, { signal });
/** @param {string} path @param {unknown} [body] */
export const post = (path, body) => call("POST", `/api/v1/${path}`, body);
/** @param {string} path @param {unknown} [body] */
export const patch = (path, body) => call("PATCH", `/api/v1/${path}`, body);
/** @param {string} path @param {unknown} [body] */
export const put = (path, body) => call("PUT", `/api/v1/${path}`, body);
/** @param {string} path */
export const remove = (path) => call("DELETE", `/api/v1/${path}`);

/** An answer of many lines, one object each. @param {string} path @returns {Promise<any[]>} */
export async function lines(path) {
  const response = await fetch(`/api/v1/${path}`, { credentials: "same-origin" });
  const text = await response.text();
  if (!response.ok) throw new Problem(response.status, said(text) || response.statusText);
  return text.split("\n").filter(Boolean).map((line) => JSON.parse(line));
}

/** A query string; lists repeat their name, and what is empty is left out. @param {Record<string, any>} values */
export function query(values) {
  const parts = new URLSearchParams();
  for (const [name, value] of Object.entries(values))
    for (const each of Array.isArray(value) ? value : [value])
      if (each !== undefined && each !== null && each !== "") parts.append(name, String(each));
  const text = parts.toString();
  return text ? `?${text}` : "";
}
