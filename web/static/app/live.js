// Notices of changes for this page. All tabs of the browser share one stream (`stream.js`).
import { useEffect, useState } from "./html.js";
import { get, serverHas, whenNewer } from "./api.js";

/**
 * `started`: from now on its points come; what was read before may lack some that were reported meanwhile.
 * @typedef {{version?: (version: string) => void, points?: (points: any[]) => void, reset?: () => void, started?: () => void}} Handlers
 * @typedef {import("./stream.js").News} News
 */

/** @type {Map<string, Set<Handlers>>} */
const handlers = new Map();
/** Of topics whose points come. @type {Map<string, string>} */
const versions = new Map();
/** @type {{isAway: boolean, isOld: boolean}} */
let connection = { isAway: false, isOld: false };
/** @type {Set<() => void>} */
const watchers = new Set();
/** @type {number | undefined} */
let timer;
const SIGN_MS = 30_000;

/** @type {Promise<(message: any) => void> | undefined} */
let sender;

/** To the stream: the worker's, or this page's own where a browser has no shared workers. @param {any} message */
async function send(message) {
  sender ??= "SharedWorker" in window ? Promise.resolve(toWorker()) : alone();
  (await sender)(message);
}

function toWorker() {
  const worker = new SharedWorker(new URL("./stream-worker.js", import.meta.url), { type: "module", name: "live" });
  worker.port.onmessage = ({ data }) => told(data);
  worker.onerror = () => {
    sender = alone();
    soon();
  };
  window.addEventListener("pagehide", () => worker.port.postMessage({ bye: true }));
  window.addEventListener("pageshow", (event) => event.persisted && soon());
  setInterval(() => worker.port.postMessage({}), SIGN_MS);
  return (/** @type {any} */ message) => worker.port.postMessage(message);
}

async function alone() {
  const { Stream } = await import("./stream.js");
  const stream = new Stream();
  setInterval(() => stream.hear(""), SIGN_MS);
  return (/** @type {any} */ message) => (message.restart ? stream.restart() : stream.set("", message.topics, told));
}

/** Be notified of a topic until the returned function is called. @param {string} topic @param {Handlers} own */
export function watch(topic, own) {
  const all = handlers.get(topic) ?? new Set();
  handlers.set(topic, all.add(own));
  const known = versions.get(topic);
  if (known !== undefined) {
    own.version?.(known);
    own.started?.();
  }
  soon();
  return () => {
    all.delete(own);
    if (!all.size) handlers.delete(topic);
    soon();
  };
}

/** Somebody has logged in or out. */
export function restart() {
  versions.clear();
  send({ restart: true });
}

/** @type {Set<() => void>} */
const returns = new Set();
/** Called each time that the API answers again, until the returned function is called. @param {() => void} handler */
export function whenBack(handler) {
  returns.add(handler);
  return () => void returns.delete(handler);
}

/** Whether the API answers, and whether it has newer pages than this one. */
export function useConnection() {
  const [, draw] = useState(0);
  useEffect(() => {
    const changed = () => draw((n) => n + 1);
    watchers.add(changed);
    return () => void watchers.delete(changed);
  }, []);
  return connection;
}

function soon() {
  clearTimeout(timer);
  timer = setTimeout(() => {
    for (const topic of versions.keys()) if (!handlers.has(topic)) versions.delete(topic);
    send({ topics: [...handlers.keys()] });
  }, 10);
}

/** @param {News} news */
function told(news) {
  if (news.kind === "away") {
    if (news.is) {
      versions.clear();
      get("me").catch(() => {}); // that the session has ended is no answer of a stream's, but one of a request's
    }
    const isBack = connection.isAway && !news.is;
    connected({ isAway: news.is });
    if (isBack) returns.forEach((handler) => handler());
  } else if (news.kind === "release") serverHas(news.digest);
  else if (news.kind === "version") {
    versions.set(news.topic, news.version);
    each(news.topic, (own) => {
      if (news.first) own.started?.();
      own.version?.(news.version);
    });
  } else if (news.kind === "points") each(news.topic, (own) => own.points?.(news.points));
  else each(news.topic, (own) => own.reset?.());
}

/** @param {string} topic @param {(own: Handlers) => void} call */
const each = (topic, call) => handlers.get(topic)?.forEach(call);

whenNewer(() => connection.isOld || connected({ isOld: true }));

/** @param {Partial<typeof connection>} change */
function connected(change) {
  connection = { ...connection, ...change };
  watchers.forEach((draw) => draw());
}
