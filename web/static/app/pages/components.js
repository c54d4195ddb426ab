// All components in all states, to look at.
import { html, useState } from "../html.js";
import { Problem } from "../api.js";
import { Field } from "../form.js";
import { Asks, Band, Choice, Confirm, Do, Empty, Failed, Head, Load, Pages, Progress, Search, State, Table, Tabs, When, toast } from "../ui.js";
import { Chart, lineColour } from "../chart.js";
import { Rungs } from "../searchview.js";

const STATES = ["RUNNING", "STARTING", "QUEUED", "PAUSED", "COMPLETED", "CANCELED", "ERROR"];
const X = Array.from({ length: 200 }, (_, i) => i);

export function Components() {
  const [value, setValue] = useState("a");
  const [text, setText] = useState("");
  const data = [X, ...[1, 2, 3].map((k) => X.map((x) => (k === 2 && x > 80 && x < 95 ? null : Math.exp(-x / (40 * k)) + 0.03 * Math.sin(x * k))))];
  return html`<div class="stack"><${Head} title="Components" crumbs=${[["Home", "/det/"], ["A longer name of a place", "/det/"]]}><button class="first">First</button><button>Plain</button><button class="danger">Danger</button><button disabled>Disabled</button><button class="quiet">Quiet</button></${Head}>
    <section class="card stack"><h2>States</h2><div class="row">${STATES.map((state) => html`<${State} key=${state} state=${state} />`)}</div><div class="row"><${Progress} share=${0} /><${Progress} share=${0.4} /><${Progress} share=${1} /><${When} at=${new Date(Date.now() - 90_000).toISOString()} /></div></section>
    <section class="card"><${Asks}><h2>Forms</h2><${Field} label="Slots" name="slots"><input value="0" /></${Field}><div class="row"><${Search} label="search" value=${text} onChange=${setText} /><${Choice} label="choice" value=${value} onChange=${setValue} options=${[["a", "first"], ["b", "second"]]} /><${Do} run=${() => new Promise((done) => setTimeout(done, 600))} done="Done">Do it</${Do}><${Do} run=${() => Promise.reject(new Problem(400, "slots: 0: expected 1 or more"))}>Fail</${Do}><button onClick=${() => toast("A short message")}>Toast</button>
      <${Confirm} label="Delete" title="Delete everything?" confirm="Delete" run=${async () => {}}><p>Names what goes.</p></${Confirm}></div></${Asks}></section>
    <${Band}>A notice that stays.</${Band}><${Band} bad>Something that needs attention.</${Band}>
    <${Tabs} base="/det/components" now="" tabs=${[["", "One"], ["x", "Two", 7]]} />
    <${Table} label="a table" rows=${[{ id: 1, name: "a row", n: 1234.5 }, { id: 2, name: "<script>alert(1)</script>", n: null }]} id=${(/** @type {any} */ r) => r.id} sort="n" onSort=${() => {}} chosen=${new Set([2])} onChoose=${() => {}} columns=${[{ key: "name", title: "Name", cell: (/** @type {any} */ r) => r.name }, { key: "n", title: "Number", num: true, sort: "n", cell: (/** @type {any} */ r) => r.n ?? "–" }]} />
    <${Pages} total=${10_000} offset=${50} limit=${50} onOffset=${() => {}} />
    <div class="cards"><section class="card"><${Chart} title="a chart" data=${data} series=${[1, 2, 3].map((k) => ({ label: `trial ${k}`, colour: lineColour(k) }))} xLabel="steps" bands=${[[80, 95, "outage"]]} /></section>
      <section class="card"><h2>Rungs</h2><${Rungs} metricName="loss" rungs=${[{ bracket: 0, rung: 0, length: 1, threshold: 0.5, entries: [1, 2, 3, 4].map((n) => ({ requestId: n, trialId: n, metric: n / 8, wentOn: n < 3, outcome: n < 3 ? "promoted" : n === 3 ? "stopped" : "failed" })) }]} /></section></div>
    <div class="cards"><section class="card"><${Empty} title="Nothing here yet"><code>det experiment create config.yaml .</code></${Empty}></section><section class="card"><${Failed} error=${new Problem(503, "Temporal does not answer: try again")} again=${() => {}} /></section>
      <section class="card"><${Load} of=${{ data: undefined, error: null }}>${() => ""}</${Load}></section></div></div>`;
}
