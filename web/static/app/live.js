// Notices of changes: one stream for all that this page shows, opened again by itself.
import { useEffect, useState } from "./html.js";

/**
 * `started`: from now on its points come; what was read before may lack some that were reported meanwhile.
 * @typedef {{version?: (version: string) => void, points?: (points: any[]) => void, reset?: () => void, started?: () => void}} Handlers
 */

/** @type {Map<string, Set<Handlers>>} */
const handlers = new Map();
/** @type {Map<string, string>} */
const versions = new Map();
/** @type {EventSource | null} */
let source = null;
let opened = "";
/** Topics whose first version came by this connection: from then on their points come. @type {Set<string>} */
let began = new Set();
let isAway = false;
let retry = 0;
/** @type {number | undefined} */
let timer;
let digest = "";
let isOld = false;
/** @type {Set<() => void>} */
const watchers = new Set();
const FIRST_RETRY_MS = 300;
const LAST_RETRY_MS = 2000;

/** Be notified of a topic until the returned function is called. @param {string} topic @param {Handlers} own */
export function watch(topic, own) {
  const all = handlers.get(topic) ?? new Set();
  handlers.set(topic, all.add(own));
  const known = versions.get(topic);
  if (known !== undefined) own.version?.(known);
  if (began.has(topic)) own.started?.();
  soon();
  return () => {
    all.delete(own);
    if (!all.size) {
      handlers.delete(topic);
      versions.delete(topic);
    }
    soon();
  };
}

/** Whether the API answers, and whether it has newer pages than this one. */
export function useConnection() {
  const [, draw] = useState(0);
  useEffect(() => {
    const changed = () => draw((n) => n + 1);
    watchers.add(changed);
    return () => void watchers.delete(changed);
  }, []);
  return { isAway, isOld };
}

function soon() {
  clearTimeout(timer);
  timer = setTimeout(open, 20);
}

function open() {
  const topics = [...handlers.keys()].sort().slice(0, 60);
  const address = topics.map((topic) => `topic=${encodeURIComponent(topic)}`).join("&");
  if (source && address === opened && source.readyState !== EventSource.CLOSED) return;
  source?.close();
  source = null;
  began = new Set();
  opened = address;
  if (!topics.length) return;
  const own = (source = new EventSource(`/api/v1/undeterred/live?${address}`));
  own.addEventListener("hello", (event) => {
    const said = JSON.parse(event.data);
    if (digest && said.digest !== digest) isOld = true;
    digest = said.digest;
    retry = 0;
    away(false);
  });
  own.addEventListener("version", (event) => {
    const { topic, version } = JSON.parse(event.data);
    if (!began.has(topic)) {
      began.add(topic);
      handlers.get(topic)?.forEach((each) => each.started?.());
    }
    if (versions.get(topic) === version) return;
    versions.set(topic, version);
    handlers.get(topic)?.forEach((each) => each.version?.(version));
  });
  own.addEventListener("points", (event) => {
    const { topic, points } = JSON.parse(event.data);
    handlers.get(topic)?.forEach((each) => each.points?.(points));
  });
  own.addEventListener("reset", (event) => {
    handlers.get(JSON.parse(event.data).topic)?.forEach((each) => each.reset?.());
  });
  own.addEventListener("ended", () => again(own));
  own.onerror = () => again(own);
}

/** @param {EventSource} own */
function again(own) {
  if (own !== source) return;
  own.close();
  source = null;
  began = new Set();
  away(true);
  retry = Math.min(LAST_RETRY_MS, retry ? retry * 1.6 : FIRST_RETRY_MS);
  clearTimeout(timer);
  timer = setTimeout(open, retry);
}

/** @param {boolean} is */
function away(is) {
  if (is === isAway && !isOld) return;
  isAway = is;
  watchers.forEach((each) => each());
}
