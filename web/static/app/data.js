// What a page shows of the API: read again when its topics change, and never overwritten by a late answer.
import { useCallback, useEffect, useRef, useState } from "./html.js";
import { call, Problem } from "./api.js";
import { watch, whenBack } from "./live.js";

const SOONEST_MS = 700;

/**
 * @template T
 * @typedef {{data: T | undefined, error: Problem | null, isLoading: boolean, reload: () => void, set: (value: any) => void}} Data
 */

/**
 * @param {string | null} path below /api/v1; null reads nothing
 * @param {string[]} [topics] read again when one of them changes
 * @param {string} [body] JSON, of a search that is a POST
 * @returns {Data<any>}
 */
export function useGet(path, topics = [], body = "") {
  const [state, setState] = useState(/** @type {any} */ ({ path: null, data: undefined, error: null }));
  const turn = useRef(0);
  const running = useRef(/** @type {AbortController | null} */ (null));
  const last = useRef(0);
  const timer = useRef(/** @type {number | undefined} */ (undefined));

  const what = path === null ? null : path + body;
  const load = useCallback(async () => {
    if (what === null) return;
    clearTimeout(timer.current);
    const own = ++turn.current;
    running.current?.abort();
    const abort = (running.current = new AbortController());
    last.current = Date.now();
    try {
      const data = await call(body ? "POST" : "GET", `/api/v1/${path}`, body ? JSON.parse(body) : undefined, { signal: abort.signal });
      if (own === turn.current) setState({ path: what, data, error: null });
    } catch (error) {
      if (abort.signal.aborted || own !== turn.current) return;
      const problem = error instanceof Problem ? error : new Problem(0, String(error));
      setState((/** @type {any} */ before) => ({ path: what, data: before.path === what ? before.data : undefined, error: problem }));
    }
  }, [what]);

  const later = useCallback(() => {
    clearTimeout(timer.current);
    timer.current = setTimeout(load, Math.max(0, last.current + SOONEST_MS - Date.now()));
  }, [load]);

  useEffect(() => {
    load();
    return () => {
      turn.current++;
      running.current?.abort();
      clearTimeout(timer.current);
    };
  }, [load]);

  const isCutOff = state.error?.status === 0;
  useEffect(() => (isCutOff ? whenBack(load) : undefined), [isCutOff, load]);
  const key = topics.join(" ");
  useEffect(() => {
    let isFirst = true;
    const stops = key.split(" ").filter(Boolean).map((topic) => {
      let known = /** @type {string | null} */ (null);
      return watch(topic, {
        version(version) {
          // The first one came with the page, or a moment after it: what it read may be older.
          if (version !== known && !(known === null && isFirst && Date.now() - last.current < 50)) later();
          known = version;
          isFirst = false;
        },
        reset: later,
      });
    });
    return () => stops.forEach((stop) => stop());
  }, [key, later]);

  const current = state.path === what ? state : { data: undefined, error: null };
  return {
    data: current.data,
    error: current.error,
    isLoading: what !== null && current.data === undefined && !current.error,
    reload: load,
    set: (value) => setState({ path: what, data: value, error: null }),
  };
}

/** A value that follows another one after it has rested. @template T @param {T} value @param {number} ms @returns {T} */
export function useRested(value, ms) {
  const [rested, setRested] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setRested(() => value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return rested;
}

/** Draw again every so often, for times that pass. @param {number} ms */
export function useTick(ms) {
  const [, draw] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => draw((n) => n + 1), ms);
    return () => clearInterval(timer);
  }, [ms]);
}
