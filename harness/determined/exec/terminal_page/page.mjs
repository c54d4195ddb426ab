import { Terminal } from "./xterm-6.0.0.mjs";
import { FitAddon } from "./addon-fit-0.11.0.mjs";
import { Connection } from "./connection.mjs";

const LISTED_EACH_MS = 5000, KEPT_LINES = 50000, LARGEST_COLUMNS = 1000, LARGEST_ROWS = 500;
const name = new URLSearchParams(location.search).get("name") || "main";
const place = document.getElementById("terminal"), state = document.getElementById("state");
const encoder = new TextEncoder();

document.title = `${name} – terminal`;
const term = new Terminal({
  cursorBlink: true, scrollback: KEPT_LINES, fontSize: 14, theme: { background: "#111418" },
  fontFamily: "ui-monospace, SFMono-Regular, Menlo, 'DejaVu Sans Mono', Consolas, monospace",
});
const fit = new FitAddon();
term.loadAddon(fit);
term.open(place);

function fitting() {
  const found = fit.proposeDimensions();
  return {
    columns: Math.min(Math.max(found?.cols || 80, 2), LARGEST_COLUMNS),
    rows: Math.min(Math.max(found?.rows || 24, 1), LARGEST_ROWS),
  };
}

let leads = false, hasEnded = false;
const shows = {
  output(bytes, done) {
    term.write(bytes, done);
  },
  began(isOther) {
    term.reset();
    if (isOther) term.write("\x1b[33m[this terminal was started anew]\x1b[0m\r\n");
  },
  lost(count) {
    term.write(`\x1b[!p\r\n\x1b[33m[${count} bytes of output are no longer kept]\x1b[0m\r\n`);
  },
  size(columns, rows, isLeader) {
    leads = isLeader;
    term.resize(columns, rows);
  },
  ended(code) {
    hasEnded = true;
    term.write(`\r\n\x1b[33m[exited with ${code}; Enter starts a new one]\x1b[0m\r\n`);
    shows.state(`exited with ${code}`, false);
  },
  state(text, isBad) {
    state.textContent = text;
    state.dataset.is = isBad ? "bad" : "";
  },
};
const connection = new Connection(name, fitting(), shows);

// What a program asks of its terminal is answered by one window, once: not by all, and not when old output is shown again.
const isMute = () => connection.isOld || !leads;
for (const id of [
  { final: "c" }, { prefix: ">", final: "c" }, { prefix: "=", final: "c" }, { final: "n" }, { prefix: "?", final: "n" },
  { intermediates: "$", final: "p" }, { prefix: "?", intermediates: "$", final: "p" }, { prefix: ">", final: "q" },
  { final: "t" }, { prefix: "?", final: "u" },
]) term.parser.registerCsiHandler(id, isMute);
for (const id of [4, 10, 11, 12]) term.parser.registerOscHandler(id, (data) => data.includes("?") && isMute());
term.parser.registerDcsHandler({ intermediates: "$", final: "q" }, isMute);
term.parser.registerDcsHandler({ intermediates: "+", final: "q" }, isMute);

term.onData((text) => {
  if (!hasEnded) return connection.type(encoder.encode(text));
  if (text === "\r") {
    hasEnded = false;
    connection.anew();
  }
});
term.onBinary((text) => connection.type(Uint8Array.from(text, (letter) => letter.charCodeAt(0))));
term.onTitleChange((title) => { document.title = `${title.slice(0, 200)} – ${name}`; });
new ResizeObserver(() => {
  const { columns, rows } = fitting();
  if (columns !== connection.size.columns || rows !== connection.size.rows) connection.resize(columns, rows);
}).observe(place);

// The terminals of this shell. Asking also renews the cookie of this page.
const list = document.getElementById("terminals");
async function look() {
  try {
    const answer = await fetch("terminals", { cache: "no-store", redirect: "error" });
    if (answer.ok) showList(await answer.json());
  } catch { /* the API is away */ }
}

function showList(found) {
  const names = new Set([...found.map((each) => each.name), name]);
  const links = [...names].map((each) => link(each, each, found.some((other) => other.name === each && other.ended)));
  let free = 2;
  while (names.has(String(free))) free += 1;
  const more = link(String(free), "+", false);
  more.title = "One more terminal";
  more.target = "_blank";
  list.replaceChildren(...links, more);
}

function link(to, text, ended) {
  const made = document.createElement("a");
  made.href = `?${new URLSearchParams({ name: to })}`;
  made.textContent = text;
  made.className = ended ? "ended" : "";
  if (to === name) made.setAttribute("aria-current", "page");
  return made;
}

look();
setInterval(() => document.hidden || look(), LISTED_EACH_MS);
setInterval(look, 3600_000);
term.focus();
