// How many lines a log has over time, by level; a place in it is where the log is shown from.
import { html, useEffect, useMemo, useRef, useState } from "./html.js";
import { query } from "./api.js";
import { useGet } from "./data.js";
import { clock, count, duration, exact, many } from "./format.js";
import { watch } from "./live.js";
import { Saves } from "./saves.js";
import { traced } from "./svg.js";
import { Band, sentence } from "./ui.js";

const [BUCKETS, W, H] = [150, 900, 56];
const AGAIN_MS = 5000;
/** From the bottom: the worst first, so that few of them are seen. Hatched: also without colour. @type {[string, string, string[]][]} */
const BANDS = [["error or worse", "var(--bad)", ["ERROR", "CRITICAL"]], ["warning", "url(#log-warning)", ["WARNING"]], ["other", "var(--line-strong)", ["", "DEBUG", "INFO", "TRACE"]]];

/** Lines of each band in each bucket. @param {{levels: {level: string, counts: number[]}[]}} histogram */
export function bands({ levels }) {
  return BANDS.map(([name, fill, of]) => {
    const own = levels.filter(({ level }) => of.includes(level));
    return { name, fill, counts: Array.from({ length: BUCKETS }, (_, i) => own.reduce((sum, { counts }) => sum + (counts[i] ?? 0), 0)) };
  });
}

/** About the time of the first line in sight. @param {{current: HTMLElement | null}} box @param {{time: string}[]} lines */
function useSeen(box, lines) {
  const [top, setTop] = useState(0);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const moved = () => setTop(element.scrollHeight ? element.scrollTop / element.scrollHeight : 0);
    moved();
    element.addEventListener("scroll", moved, { passive: true });
    return () => element.removeEventListener("scroll", moved);
  }, [lines]);
  return lines[Math.min(lines.length - 1, Math.floor(top * lines.length))]?.time ?? null;
}

/** @param {{of: string, taskIds: string[], levels: string[], search: string, box: {current: HTMLElement | null}, lines: {time: string}[], onTime: (time: string) => void}} props `box`: where the lines are shown */
export function LogHistogram({ of, taskIds, levels, search, box, lines, onTime }) {
  const at = useSeen(box, lines);
  const list = useGet(`undeterred/${of}/log-histogram${query({ buckets: BUCKETS, levels, search })}`);
  const picture = useRef(/** @type {any} */ (null));
  const [place, setPlace] = useState(/** @type {number | null} */ (null));
  const isDown = useRef(false);
  const { reload } = list;
  const key = taskIds.join(" ");
  useEffect(() => {
    let timer = /** @type {number | undefined} */ (undefined);
    let isFirst = true;
    const news = () => {
      if (!isFirst) timer ??= setTimeout(() => { timer = undefined; reload(); }, AGAIN_MS);
      isFirst = false;
    };
    const stops = key.split(" ").filter(Boolean).map((id) => watch(`log:${id}`, { version: news, reset: news }));
    return () => {
      clearTimeout(timer);
      stops.forEach((stop) => stop());
    };
  }, [key, reload]);
  const layers = useMemo(() => bands(list.data ?? { levels: [] }), [list.data]);
  if (list.error && !list.data) return html`<${Band} bad>${sentence(list.error)} <button class="small" onClick=${reload}>Try again</button></${Band}>`;
  if (!list.data) return html`<div class="skeleton" style=${{ height: "92px" }}></div>`;
  if (!list.data.start) return null;
  const start = Date.parse(list.data.start);
  const widthMs = 1000 * list.data.widthS;
  const sums = layers[0].counts.map((_, i) => layers.reduce((sum, layer) => sum + layer.counts[i], 0));
  const most = Math.max(1, ...sums);
  const all = sums.reduce((a, b) => a + b, 0);
  const time = (/** @type {number} */ bucket) => new Date(start + bucket * widthMs).toISOString();
  const now = at ? Math.min(BUCKETS, Math.max(0, (Date.parse(at) - start) / widthMs)) : null;
  const bucketAt = (/** @type {any} */ event) => {
    const box = event.currentTarget.getBoundingClientRect();
    return Math.min(BUCKETS - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * BUCKETS)));
  };
  const said = (/** @type {number} */ i) => `${exact(time(i))}: ${layers.filter((layer) => layer.counts[i]).map((layer) => `${count(layer.counts[i])} ${layer.name}`).join(", ") || "no line"}`;
  const step = place ?? Math.floor(now ?? 0);
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    const by = /** @type {Record<string, number>} */ ({ ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -BUCKETS, End: BUCKETS })[event.key];
    if (!by) return;
    event.preventDefault();
    const next = Math.min(BUCKETS - 1, Math.max(0, step + by));
    setPlace(next);
    onTime(time(next));
  };
  const x = (/** @type {number} */ i) => (i / BUCKETS) * W;
  return html`<figure class="stack tight" aria-label="lines over time: ${many(all, "line")}">
    <div class="row spread muted"><span class="row">${list.data.isApproximate ? "about " : ""}${many(all, "line")} in ${duration((BUCKETS * widthMs) / 1000)}${BANDS.map(([name, fill], i) => html`<span class="row tight" key=${name}><svg width="10" height="10" aria-hidden="true"><rect width="10" height="10" fill=${fill} /></svg>${name}: ${count(layers[i].counts.reduce((a, b) => a + b, 0))}</span>`)}</span>
      <${Saves} name="lines over time" file="${of}-lines" draw=${draw} table=${() => [["from", ...layers.map((layer) => layer.name)], [sums.map((_, i) => time(i)), ...layers.map((layer) => layer.counts)]]} /></div>
    <svg class="histogram" ref=${picture} viewBox="0 0 ${W} ${H}" preserveAspectRatio="none" tabindex="0" role="slider" aria-label="show the log from a time" aria-valuemin="0" aria-valuemax=${BUCKETS - 1} aria-valuenow=${step} aria-valuetext=${said(step)} onKeyDown=${onKey}
      onPointerDown=${(/** @type {any} */ event) => { isDown.current = true; event.currentTarget.setPointerCapture(event.pointerId); setPlace(bucketAt(event)); }}
      onPointerMove=${(/** @type {any} */ event) => setPlace(bucketAt(event))}
      onPointerUp=${(/** @type {any} */ event) => { if (isDown.current) onTime(time(bucketAt(event))); isDown.current = false; }}
      onPointerLeave=${() => !isDown.current && setPlace(null)}>
      <defs><pattern id="log-warning" width="4" height="4" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="4" height="4" fill="var(--wait-soft)" /><rect width="2" height="4" fill="var(--wait)" /></pattern></defs>
      <rect width=${W} height=${H} fill="var(--surface)" />
      ${sums.map((sum, i) => {
        let bottom = H;
        return sum > 0 && layers.map((layer, k) => {
          const height = layer.counts[i] ? Math.max(k < 2 ? 3 : 1, (layer.counts[i] / most) * (H - 4)) : 0;
          bottom -= height;
          return height > 0 && html`<rect key="${i} ${layer.name}" x=${x(i)} y=${Math.max(0, bottom)} width=${W / BUCKETS - 0.8} height=${height} fill=${layer.fill} />`;
        });
      })}
      ${place !== null && html`<rect x=${x(place)} width=${W / BUCKETS} height=${H} fill="var(--focus)" fill-opacity="0.25" />`}
      ${now !== null && html`<path d="M${x(now)} 0v${H}" stroke="var(--ink)" stroke-width="1.5" vector-effect="non-scaling-stroke" />`}</svg>
    <p class="plot-tip row spread nowrap"><span>${place === null ? clock(time(0)) : said(place)}</span>${place === null && html`<span class="hint">${list.data.isApproximate ? "lines below warning are estimated; " : ""}click or drag to show the log from there</span><span>${clock(time(BUCKETS))}</span>`}</p></figure>`;

  /** Higher than on the page, where it stands above the log. */
  function draw() {
    const about = `${exact(time(0))} to ${exact(time(BUCKETS))}; the highest bar has ${many(most, "line")}${list.data.isApproximate ? "; those below warning are estimated" : ""}`;
    return { ...traced(picture.current, { height: 3 * H }), title: `Lines of ${of.replace("/", " ").replace(/s(?= )/, "")} over time`, about, keys: layers.map(({ name, fill, counts }) => ({ label: `${name}: ${count(counts.reduce((a, b) => a + b, 0))}`, fill })) };
  }
}
