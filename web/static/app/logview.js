// A log of any length: a window onto it, read by the ids of its lines; follows its end.
import { html, useCallback, useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { get } from "./api.js";
import { clock, exact } from "./format.js";
import { watch } from "./live.js";
import { Band, Choice, Search, sentence } from "./ui.js";
import { lazy } from "./lazy.js";
import { LEVELS, from, windowPath } from "./logwindow.js";
import { useQuery } from "./router.js";

const LogHistogram = lazy("LogHistogram", () => import("./loghistogram.js"));

const [MOST_KEPT, ENOUGH] = [2000, 100];
const NEAR_PX = 200;

/** @param {{of: string, taskIds: string[]}} props `of`: `tasks/<id>` or `trials/<number>`; `taskIds`: whose lines arrive */
export function LogView({ of, taskIds }) {
  const [search, setSearch] = useQuery("search");
  const [level, setLevel] = useQuery("level");
  const [state, setState] = useState(/** @type {any} */ ({ lines: [], firstId: null, lastId: null, lookedTo: null, error: null, isRead: false }));
  const [follows, setFollows] = useState(true);
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const turn = useRef(0);
  const busy = useRef(false);
  const keep = useRef(/** @type {{height: number, top: number} | null} */ (null));
  const current = useRef(state);
  const [told, setTold] = useState({ search, level }); // what the lines in sight were read for: the histogram asks after them
  const follow = useRef(follows);
  follow.current = follows;
  current.current = state;

  const read = useCallback(
    async (/** @type {Record<string, any>} */ where) => {
      return get(windowPath(of, where, search, level));
    },
    [of, search, level],
  );

  /** Take in one more piece. @param {any} found @param {"before" | "after"} end */
  const join = (found, end) => {
    if (found.lines.length && end === "before" && box.current) keep.current = { height: box.current.scrollHeight, top: box.current.scrollTop };
    setState((/** @type {any} */ now) => {
      // Another answer may have brought some of them meanwhile.
      const known = new Set(now.lines.map((/** @type {any} */ line) => line.id));
      const fresh = found.lines.filter((/** @type {any} */ line) => !known.has(line.id));
      const joined = end === "before" ? [...fresh, ...now.lines] : [...now.lines, ...fresh];
      const kept = end === "before" ? joined.slice(0, MOST_KEPT) : joined.slice(-MOST_KEPT);
      return { ...now, firstId: found.firstId, lastId: found.lastId, lookedTo: found.lookedTo, lines: kept, error: null };
    });
  };

  /** A search looks at a part of a long log, and goes on from there. @param {number} own @param {any} found @param {"before" | "after"} end */
  const onward = async (own, found, end) => {
    for (let n = found.lines.length; found.lookedTo !== null && n < ENOUGH; n += found.lines.length) {
      found = await read({ [end]: found.lookedTo });
      if (own !== turn.current) return;
      join(found, end);
    }
  };

  /** Show another part of it. @param {Record<string, any>} where @param {boolean} toEnd */
  const show = useCallback(async (where, toEnd) => {
    const own = ++turn.current;
    try {
      const found = await read(where);
      if (own !== turn.current) return;
      keep.current = null;
      setState({ ...found, error: null, isRead: true });
      setTold({ search, level });
      setFollows(toEnd);
      requestAnimationFrame(() => box.current && (box.current.scrollTop = toEnd ? box.current.scrollHeight : 0));
      await onward(own, found, toEnd ? "before" : "after");
    } catch (error) {
      if (own === turn.current) setState((/** @type {any} */ before) => ({ ...before, error, isRead: true }));
    }
  }, [read]);

  /** One more piece at an end. @param {"before" | "after"} end */
  const more = useCallback(async (end) => {
    const { lines, isRead } = current.current;
    if (busy.current || !isRead) return; // the first part has not come yet: it has the newest lines
    busy.current = true;
    let isFull = false;
    const own = turn.current;
    try {
      const edge = end === "before" ? lines[0]?.id : lines[lines.length - 1]?.id;
      const found = await read(edge === undefined ? { after: 0 } : { [end]: edge });
      if (own !== turn.current || (!found.lines.length && found.lookedTo === null)) return;
      isFull = found.isFull;
      join(found, end);
      await onward(own, found, end);
    } catch (error) {
      if (own === turn.current) setState((/** @type {any} */ now) => ({ ...now, error }));
    } finally {
      busy.current = false;
    }
    if (isFull && end === "after" && follow.current) more(end);
  }, [read]);

  useEffect(() => void show({}, true), [show]);
  const key = taskIds.join(" ");
  useEffect(() => {
    const news = () => {
      if (follows) more("after");
    };
    const stops = key.split(" ").filter(Boolean).map((id) => watch(`log:${id}`, { version: news, reset: news }));
    return () => stops.forEach((stop) => stop());
  }, [key, follows, more]);
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    if (keep.current) {
      element.scrollTop = element.scrollHeight - keep.current.height + keep.current.top;
      keep.current = null;
    } else if (follows) element.scrollTop = element.scrollHeight;
  }, [state.lines]);

  const onScroll = () => {
    const element = box.current;
    if (!element) return;
    const atEnd = element.scrollHeight - element.scrollTop - element.clientHeight < 24;
    setFollows(atEnd);
    if (element.scrollTop < NEAR_PX && state.lines[0]?.id > state.firstId) more("before");
    if (element.scrollHeight - element.scrollTop - element.clientHeight < NEAR_PX && state.lines[state.lines.length - 1]?.id < state.lastId) more("after");
  };
  const place = state.lines.length && state.lastId > state.firstId ? (state.lines[0].id - state.firstId) / (state.lastId - state.firstId) : 0;
  return html`<section class="stack tight" aria-label="log">
    <div class="row spread"><div class="row"><${Search} label="search the log" value=${search} onChange=${setSearch} />
      <${Choice} label="level" value=${level} onChange=${setLevel} options=${LEVELS.map((each) => [each, each ? `${each.toLowerCase()} and worse` : "all"])} />
      <label class="row tight"><span class="muted">from</span><input type="datetime-local" aria-label="show from this time" onChange=${(/** @type {any} */ event) => event.target.value && show({ time: new Date(event.target.value).toISOString() }, false)} /></label></div>
      <div class="row"><label class="row tight"><span class="muted">place</span><input type="range" min="0" max="1000" aria-label="place in the log" value=${follows ? 1000 : Math.round(place * 1000)} onChange=${(/** @type {any} */ event) => show({ share: event.target.value / 1000 }, event.target.value >= 1000)} /></label>
      <button onClick=${() => show({ share: 0 }, false)}>Start</button><button aria-pressed=${follows} onClick=${() => show({}, true)}>Follow</button>
      <a class="button" href="/api/v1/${of}/logs" download="${of.replace("/", "-")}.log.jsonl">Download</a></div></div>
    ${state.error && html`<${Band} bad>${sentence(state.error)}</${Band}>`}
    <${LogHistogram} of=${of} taskIds=${taskIds} levels=${from(told.level)} search=${told.search} box=${box} lines=${state.lines} onTime=${(/** @type {string} */ time) => show({ time }, false)} />
    <div class="log" ref=${box} onScroll=${onScroll} tabindex="0" role="log" aria-label="lines of the log" aria-live="off">
      ${state.lines.map((/** @type {any} */ line) => html`<${Line} key=${line.id} line=${line} search=${search} />`)}
      ${state.lookedTo !== null && html`<p class="muted" role="status">Searching: ${share(state)} of the log so far.</p>`}
      ${state.isRead && !state.lines.length && state.lookedTo === null && html`<p class="empty muted">${search || level ? "No line matches." : "Nothing has been written yet."}</p>`}
    </div></section>`;
}

/** How much of it a search has looked at, from its end. @param {any} state */
const share = ({ firstId, lastId, lookedTo }) => `${Math.round((100 * (lastId - lookedTo)) / Math.max(1, lastId - firstId))} %`;

/** @param {{line: any, search: string}} props */
function Line({ line, search }) {
  return html`<div class="line ${line.level}"><time datetime=${line.time} title="${exact(line.time)} ${line.container}">${clock(line.time)}</time>
    <span>${line.rank !== null && html`<span class="muted">[${line.rank}] </span>`}${coloured(line.text, search)}</span></div>`;
}

// Colours and weights of terminals; everything else that a terminal would act on is left out.
const SEQUENCE = /\x1b\[([0-9;]{0,30})m|\x1b\[[0-9;?]{0,30}[A-Za-z]|\x1b\][^\x07\x1b]{0,300}(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f]/g;

/** A line as elements: text stays text. @param {string} text @param {string} search */
function coloured(text, search) {
  /** @type {any[]} */
  const parts = [];
  /** @type {string[]} */
  let now = [];
  let from = 0;
  const add = (/** @type {string} */ piece) => piece && parts.push(now.length ? html`<span class=${now.map((n) => `a${n}`).join(" ")}>${marked(piece, search)}</span>` : marked(piece, search));
  for (const found of text.matchAll(SEQUENCE)) {
    add(text.slice(from, found.index));
    from = found.index + found[0].length;
    if (found[1] === undefined) continue;
    const codes = found[1].split(";").map((code) => code || "0");
    for (const code of codes) now = code === "0" ? [] : /^(1|4|3[0-7]|9[0-7])$/.test(code) ? [...now.filter((c) => (code.length > 1) !== (c.length > 1) || c === code), code] : now;
  }
  add(text.slice(from));
  return parts;
}

/** @param {string} text @param {string} search */
function marked(text, search) {
  if (!search) return text;
  const parts = [];
  const low = text.toLowerCase();
  const wanted = search.toLowerCase();
  let from = 0;
  for (let at = low.indexOf(wanted); at >= 0; at = low.indexOf(wanted, from)) {
    parts.push(text.slice(from, at), html`<mark>${text.slice(at, at + wanted.length)}</mark>`);
    from = at + wanted.length;
  }
  return [...parts, text.slice(from)];
}
