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
  const text = await response.text();
  if (response.ok) return text ? JSON.parse(text) : {};
  const message = said(text) || `${response.status} ${response.statusText}`;
  if (response.status === 401 && !path.endsWith("/login")) onLoggedOut();
  throw new Problem(response.status, message);
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
