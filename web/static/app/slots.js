// Slots over time: in use by user, as areas on each other, and below them what waited.
import { html, useEffect, useMemo, useRef, useState } from "./html.js";
import { query } from "./api.js";
import { useGet } from "./data.js";
import { exact } from "./format.js";
import { useQuery } from "./router.js";
import { Saves } from "./saves.js";
import { traced, useWidth } from "./svg.js";
import { Choice, Empty, Load } from "./ui.js";

const [LEFT, TOP, HIGH, GAP, LOW, BOTTOM] = [44, 14, 220, 30, 80, 24];
/** Length, and how often it is read again. @type {Record<string, [string, number, number]>} */
const SPANS = { hour: ["the last hour", 3600, 15], day: ["the last day", 86_400, 60], week: ["the last week", 604_800, 300], month: ["the last month", 2_592_000, 900] };
const MOST_LINES = 10;
/** Areas differ in lightness from one to the next. */
const shade = (/** @type {number} */ i) => `hsl(${(i * 137.508 + 215) % 360} ${i % 2 ? "45% 68%" : "55% 42%"})`;

/** The next round number, for the top of an axis. @param {number} n */
export const round = (n) => {
  const unit = 10 ** Math.floor(Math.log10(n));
  return unit * ([1, 2, 4, 6, 8, 10].find((times) => times * unit >= n) ?? 10);
};

/** @typedef {{label: string, colour: string, slots: number[]}} Layer */

/** What users held beside their fair parts: those who had a part, and those who held something. @param {any} answer @returns {(Layer & {fair: (number | null)[]})[]} */
export function sharesOf(answer) {
  const [none, unknown] = [answer.waiting.map(() => 0), answer.capacity.map((/** @type {number | null} */ slots) => (slots === null ? null : 0))];
  return [...new Set([...Object.keys(answer.fair), ...Object.keys(answer.users)])].slice(0, MOST_LINES).map((label, i) => ({ label, colour: shade(i), slots: answer.users[label] ?? none, fair: answer.fair[label] ?? unknown }));
}

/** What lies on what: users, then those without a line of their own. @param {any} answer @returns {Layer[]} */
export function layersOf(answer) {
  const isSome = (/** @type {number[]} */ slots) => slots.some((n) => n > 0);
  const users = Object.entries(answer.users).map(([label, slots], i) => ({ label, colour: shade(i), slots: /** @type {number[]} */ (slots) }));
  const rest = [{ label: "other users", colour: "var(--line-strong)", slots: answer.others }, { label: "of other workspaces", colour: "var(--line)", slots: answer.hidden }];
  return [...users, ...rest.filter((layer) => isSome(layer.slots))];
}

/** Corners of areas that lie on each other, in slots. @param {Layer[]} layers @returns {{low: number[], high: number[]}[]} */
export function stacked(layers) {
  let below = layers[0]?.slots.map(() => 0) ?? [];
  return layers.map((layer) => {
    const [low, high] = [below, below.map((n, i) => n + layer.slots[i])];
    below = high;
    return { low, high };
  });
}

export function SlotsOverTime() {
  const [asked, setSpan] = useQuery("span", "day");
  const span = asked in SPANS ? asked : "day";
  const [pool, setPool] = useQuery("pool");
  const [view, setView] = useQuery("view");
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    setNow(Date.now());
    const timer = setInterval(() => setNow(Date.now()), SPANS[span][2] * 1000);
    return () => clearInterval(timer);
  }, [span]);
  const pools = useGet("resource-pools", ["agents"]);
  const asking = useGet(`undeterred/cluster/slots-over-time${query({ timestampAfter: new Date(now - SPANS[span][1] * 1000).toISOString(), pool, buckets: 240 })}`);
  const last = useRef(/** @type {any} */ ({}));
  if (asking.data) last.current = { key: `${span} ${pool}`, data: asking.data };
  const shown = last.current.key === `${span} ${pool}` ? { ...asking, data: last.current.data } : asking; // the next one does not empty the picture
  const of = (pools.data?.resourcePools ?? []).filter((/** @type {any} */ each) => !pool || each.name === pool);
  return html`<section class="card" aria-label="slots over time"><div class="row spread"><h2>Slots over time</h2><div class="row">
      <${Choice} label="show" value=${view} onChange=${setView} options=${[["", "use of slots"], ["fair", "use and fair shares"]]} />
      <${Choice} label="span" value=${span} onChange=${setSpan} options=${Object.entries(SPANS).map(([key, [text]]) => [key, text])} />
      <${Choice} label="pool" value=${pool} onChange=${setPool} options=${[["", "all pools"], ...(pools.data?.resourcePools ?? []).map((/** @type {any} */ each) => [each.name, each.name])]} /></div></div>
    <${Load} of=${shown} height=${360}>${(/** @type {any} */ answer) => html`<${Areas} answer=${answer} isFair=${view === "fair"} capacity=${of.reduce((/** @type {number} */ sum, /** @type {any} */ each) => sum + each.slotsAvailable, 0)} days=${SPANS[span][1] > 86_400} />`}</${Load}></section>`;
}

/** @param {{answer: any, isFair: boolean, capacity: number, days: boolean}} props `capacity`: slots that there are now; `isFair`: lines of users beside their fair parts, in place of areas */
function Areas({ answer, isFair, capacity, days }) {
  const picture = useRef(/** @type {any} */ (null));
  const [box, width] = useWidth();
  const [at, setAt] = useState(-1);
  const layers = useMemo(() => (isFair ? sharesOf(answer) : layersOf(answer)), [answer, isFair]);
  const areas = useMemo(() => stacked(layers), [layers]);
  const count = answer.waiting.length;
  const used = isFair ? stacked(layersOf(answer)).at(-1)?.high ?? answer.waiting.map(() => 0) : areas[areas.length - 1]?.high ?? answer.waiting.map(() => 0);
  const [most, mostWaiting] = [round(Math.max(1, capacity, ...answer.capacity, ...used)), round(Math.max(1, ...answer.waiting))];
  const x = (/** @type {number} */ i) => LEFT + (i / count) * (width - LEFT - 10);
  const y = (/** @type {number} */ n) => TOP + HIGH - (n / most) * HIGH;
  const floor = TOP + HIGH + GAP;
  const wait = (/** @type {number} */ n) => floor + (n / mostWaiting) * LOW;
  const height = floor + LOW + BOTTOM;
  const time = (/** @type {number} */ i) => Date.parse(answer.start) + i * answer.bucketSeconds * 1000;
  const written = (/** @type {number} */ i) => new Date(time(i)).toLocaleString([], days ? { month: "short", day: "numeric" } : { hour: "2-digit", minute: "2-digit", hour12: false });
  // Each part is a step: its mean, as wide as it is.
  const steps = (/** @type {number[]} */ row, /** @type {(n: number) => number} */ place) => row.flatMap((n, i) => [`${x(i).toFixed(1)},${place(n).toFixed(1)}`, `${x(i + 1).toFixed(1)},${place(n).toFixed(1)}`]);
  /** Lines of what is known: a gap where it is not. */
  const lines = (/** @type {(number | null)[]} */ row) => {
    /** @type {string[][]} */
    const parts = [[]];
    row.forEach((n, i) => (n === null ? parts.unshift([]) : parts[0].push(`${x(i).toFixed(1)},${y(n).toFixed(1)}`, `${x(i + 1).toFixed(1)},${y(n).toFixed(1)}`)));
    return parts.filter((part) => part.length);
  };
  const stroke = (/** @type {string} */ key, /** @type {(number | null)[]} */ row, /** @type {string} */ colour, /** @type {string | null} */ dash = null, width = 1.8) => lines(row).map((part, i) => html`<polyline key="${key}${i}" points=${part.join(" ")} fill="none" stroke=${colour} stroke-width=${width} stroke-dasharray=${dash}><title>${key}</title></polyline>`);
  const area = (/** @type {{low: number[], high: number[]}} */ { low, high }) => [...steps(high, y), ...steps(low, y).reverse()].join(" ");
  const near = (/** @type {number} */ n) => Number(n.toFixed(1)).toLocaleString("en-US");
  const says = at < 0 ? `Now ${near(used[count - 1] ?? 0)} of ${near(capacity)} slots in use, ${near(answer.waiting[count - 1] ?? 0)} waited for.` : `${exact(time(at))}: ${near(used[at])} in use${layers.filter((/** @type {any} */ layer) => layer.slots[at] > 0.05 || layer.fair?.[at] > 0).slice(0, 4).map((/** @type {any} */ layer) => `, ${layer.label} ${near(layer.slots[at])}${layer.fair?.[at] >= 0 ? ` of a fair ${near(layer.fair[at])}` : ""}`).join("")}; ${near(answer.waiting[at])} waited for.`;
  const move = (/** @type {any} */ event) => {
    const bounds = picture.current.getBoundingClientRect();
    setAt(Math.max(0, Math.min(count - 1, Math.floor(((((event.clientX - bounds.left) / bounds.width) * width - LEFT) / (width - LEFT - 10)) * count))));
  };
  const step = (/** @type {any} */ event) => {
    const by = /** @type {Record<string, number>} */ ({ ArrowLeft: -1, ArrowRight: 1 })[event.key];
    if (!by) return;
    event.preventDefault();
    setAt((now) => Math.max(0, Math.min(count - 1, (now < 0 ? count : now) + by)));
  };
  if (!used.some((/** @type {number} */ n) => n > 0) && !answer.waiting.some((/** @type {number} */ n) => n > 0)) return html`<${Empty} title="No slot was used or waited for in this time"></${Empty}>`;
  const keys = [...layers, { label: "waited for", colour: "var(--wait)" }];
  const isBlank = isFair && answer.capacity.every((/** @type {number | null} */ slots) => slots === null);
  return html`<div class="stack tight"><div ref=${box}><svg class="picture" ref=${picture} viewBox="0 0 ${width} ${height}" role="slider" tabindex="0" aria-label="slots in use and waited for; the arrow keys read it" aria-valuemin="0" aria-valuemax=${count - 1} aria-valuenow=${at < 0 ? count - 1 : at} aria-valuetext=${says} onPointerMove=${move} onPointerLeave=${() => setAt(-1)} onKeyDown=${step}>
      ${[0, 0.25, 0.5, 0.75, 1].map((share) => html`<g key=${share}><line class="grid" x1=${LEFT} x2=${width - 10} y1=${y(share * most)} y2=${y(share * most)} /><text x=${LEFT - 6} y=${y(share * most) + 4} text-anchor="end">${near(share * most)}</text></g>`)}
      ${isFair ? layers.map((/** @type {any} */ layer) => html`${stroke(`${layer.label}, fair`, layer.fair, layer.colour, "6 4")}${stroke(layer.label, layer.slots, layer.colour)}`) : areas.map((each, i) => html`<polygon key=${layers[i].label} points=${area(each)} fill=${layers[i].colour} stroke="var(--surface)" stroke-width="0.4"><title>${layers[i].label}</title></polygon>`)}
      ${stroke("slots in service", answer.capacity, "var(--ink)", "2 3", 1.2)}
      ${capacity > 0 && html`<text x=${LEFT + 4} y=${Math.max(11, y(capacity) - 4)}>${near(capacity)} slots now</text>`}
      <text x=${LEFT} y=${floor - 6}>waited for ↓</text><text x=${LEFT - 6} y=${floor + LOW + 4} text-anchor="end">${near(mostWaiting)}</text><text x=${LEFT - 6} y=${floor + 4} text-anchor="end">0</text>
      <polygon points=${[...steps(answer.waiting, wait), `${x(count)},${floor}`, `${x(0)},${floor}`].join(" ")} fill="var(--wait)" /><line class="axis" x1=${LEFT} x2=${width - 10} y1=${floor} y2=${floor} /><line class="axis" x1=${LEFT} x2=${width - 10} y1=${TOP + HIGH} y2=${TOP + HIGH} />
      ${(width < 500 ? [0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1]).map((share) => html`<text key="t${share}" x=${x(share * count)} y=${height - 6} text-anchor=${share === 1 ? "end" : share ? "middle" : "start"}>${share === 1 ? "now" : written(share * count)}</text>`)}
      ${at >= 0 && html`<line x1=${x(at + 0.5)} x2=${x(at + 0.5)} y1=${TOP} y2=${floor + LOW} stroke="var(--ink)" opacity="0.6" />`}</svg></div>
    <p class="plot-tip" style=${{ whiteSpace: "normal" }}>${says}</p>
    ${isFair && html`<p class="muted">${isBlank ? "Fair shares of this time are not known: they are recorded since the cluster has this release, for 35 days." : "Solid: slots in use. Dashed: what the weights of all jobs would give, and no more than the user's jobs can use."}</p>`}
    <ul class="row" style=${{ columnGap: "var(--s4)" }} aria-label="whose slots">${keys.map((layer) => html`<li class="row tight" key=${layer.label}><svg width="12" height="12" aria-hidden="true"><rect width="12" height="12" rx="2" fill=${layer.colour} /></svg>${layer.label}</li>`)}</ul>
    <${Saves} name="slots over time" draw=${() => ({ ...traced(picture.current), title: "Slots over time", about: `${exact(time(0))} to ${exact(time(count))}`, keys: [...keys.map(({ label, colour }) => ({ label, fill: colour })), ...(isFair ? [{ label: "fair share", shape: "line", stroke: "var(--ink)", dash: "6 4" }] : []), { label: "slots in service", shape: "line", stroke: "var(--ink)", dash: "2 3" }] })}
      table=${() => [["time", ...layers.map((layer) => layer.label), ...(isFair ? layers.map((layer) => `fair share of ${layer.label}`) : []), "in service", "waited for"], [answer.waiting.map((/** @type {number} */ _, /** @type {number} */ i) => new Date(time(i)).toISOString()), ...layers.map((layer) => layer.slots), ...(isFair ? layers.map((/** @type {any} */ layer) => layer.fair) : []), answer.capacity, answer.waiting]]} /></div>`;
}
