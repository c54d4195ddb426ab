// One window's connection to a terminal, which outlives every WebSocket: it says what it has, and gets what is missing.

const FIRST_PAUSE_MS = 200, LONGEST_PAUSE_MS = 1000;
// The server says something every 10 s. Asked for a word, it answers at once.
const SILENT_MS = 25000, ANSWER_MS = 2000, LOOK_MS = 1000;
const ACKNOWLEDGED_EACH = 64 * 1024, TYPED_PIECE = 32 * 1024;
// A page that is not seen shows almost nothing, as browsers slow it down. So much waits here until it is seen again.
const MOST_UNSEEN = 32 * 2**20;
// Codes of closed WebSockets, as the server has them: why there is no point in trying again at once.
const REASONS = {
  1008: "this page and the terminal do not understand each other: load the page anew",
  4001: "there are too many terminals or windows of this shell: close one, then load this page anew",
  4002: "the shell can't start one more terminal",
};
// What the API answers when this page may not come back by itself.
const REFUSALS = {
  401: "the session that this page was opened from has ended: run `det shell open --web` again",
  403: "this shell is not yours to open",
  404: "this shell is not there any more",
  400: "this shell has ended",
};

export class Connection {
  // `shows`: output(bytes, done), began(isOther), lost(count), size(columns, rows, leads), ended(code), state(text, isBad)
  constructor(name, size, shows) {
    this.name = name;
    this.size = size;
    this.shows = shows;
    this.epoch = "";
    this.received = this.shown = this.acknowledged = 0;
    this.old = 0; // what is before this offset was written while we were away
    this.pause = FIRST_PAUSE_MS;
    this.socket = null;
    this.isOver = false;
    this.heardAt = this.lookedAt = Date.now();
    setInterval(() => this.look(), LOOK_MS);
    addEventListener("online", () => this.again());
    document.addEventListener("visibilitychange", () => document.hidden || this.probe());
    this.connect();
  }

  connect() {
    clearTimeout(this.timer);
    this.drop();
    const address = new URL("attach", location.href);
    address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    address.search = new URLSearchParams({
      name: this.name, epoch: this.epoch, from: this.received, columns: this.size.columns, rows: this.size.rows,
    });
    const socket = this.socket = new WebSocket(address);
    socket.binaryType = "arraybuffer";
    this.heardAt = Date.now();
    let wasOpen = false;
    // What an older WebSocket still delivers has been asked for again.
    const own = (act) => (event) => { if (this.socket === socket) { this.heardAt = Date.now(); act(event); } };
    socket.onopen = own(() => { wasOpen = true; });
    socket.onmessage = own(({ data }) => typeof data === "string" ? this.told(JSON.parse(data)) : this.output(new Uint8Array(data)));
    socket.onclose = own(({ code }) => this.closed(code, wasOpen));
  }

  drop() {
    const before = this.socket;
    this.socket = null;
    before?.close();
  }

  async closed(code, wasOpen) {
    this.socket = null;
    if (this.isOver) return;
    if (code in REASONS) return this.giveUp(REASONS[code]);
    this.shows.state("reconnecting…", true);
    this.timer = setTimeout(() => this.connect(), this.pause * (0.5 + Math.random() / 2));
    this.pause = Math.min(LONGEST_PAUSE_MS, this.pause * 1.5);
    if (!wasOpen) await this.askWhy();
  }

  // A browser does not tell a page why a WebSocket was refused.
  async askWhy() {
    try {
      const answer = await fetch("terminals", { cache: "no-store", redirect: "error" });
      if (answer.status in REFUSALS && !this.socket?.readyState) this.giveUp(REFUSALS[answer.status]);
    } catch { /* the API is away */ }
  }

  giveUp(why) {
    clearTimeout(this.timer);
    this.isOver = true;
    this.drop();
    this.shows.state(why, true);
  }

  // At once: there may be a network again.
  again() {
    if (this.isOver) return;
    this.pause = FIRST_PAUSE_MS;
    this.connect();
  }

  // A terminal of this name that is new, after this one has ended.
  anew() {
    this.isOver = false;
    this.epoch = "";
    this.received = this.shown = this.acknowledged = 0;
    this.again();
  }

  look() {
    const now = Date.now(), slept = now - this.lookedAt > 5 * LOOK_MS;
    this.lookedAt = now;
    if (this.isOver || !this.socket) return;
    if (now - this.heardAt > SILENT_MS) return this.again();
    if (slept && !document.hidden) this.probe();
  }

  // After a sleep a connection looks alive that is not.
  probe() {
    const socket = this.socket, asked = Date.now();
    if (this.isOver || socket?.readyState !== WebSocket.OPEN) return;
    this.say({ kind: "there" });
    setTimeout(() => { if (this.socket === socket && this.heardAt < asked) this.again(); }, ANSWER_MS);
  }

  told(message) {
    if (message.kind === "hello") {
      const isKnown = message.epoch === this.epoch;
      if (!isKnown) {
        this.shows.began(this.epoch !== "");
        this.epoch = message.epoch;
        this.received = this.shown = this.acknowledged = message.from;
      }
      this.old = message.until;
      this.pause = FIRST_PAUSE_MS;
      this.shows.state("", false);
    } else if (message.kind === "lost") {
      this.received = this.shown = message.from;
      this.shows.lost(message.bytes);
    } else if (message.kind === "size") {
      this.shows.size(message.columns, message.rows, message.leads);
    } else if (message.kind === "ended") {
      this.isOver = true;
      this.shows.ended(message.code);
    }
  }

  output(bytes) {
    const begins = this.received, epoch = this.epoch;
    this.received += bytes.length;
    const cut = Math.min(Math.max(this.old - begins, 0), bytes.length);
    for (const part of [bytes.subarray(0, cut), bytes.subarray(cut)]) {
      if (part.length) this.shows.output(part, () => epoch === this.epoch && this.showed(part.length));
    }
    if (document.hidden && this.received - this.shown < MOST_UNSEEN) this.acknowledge(this.received);
  }

  // Whether what is being shown was written while we were away.
  get isOld() {
    return this.shown < this.old;
  }

  showed(count) {
    this.shown += count;
    this.acknowledge(this.shown);
  }

  acknowledge(offset) {
    if (offset - this.acknowledged >= ACKNOWLEDGED_EACH) {
      this.acknowledged = offset;
      this.say({ kind: "shown", offset });
    }
  }

  // What is typed while there is no connection goes nowhere: it would come late, and to something else.
  type(bytes) {
    if (this.socket?.readyState !== WebSocket.OPEN || this.isOver) return;
    for (let at = 0; at < bytes.length; at += TYPED_PIECE) this.socket.send(bytes.subarray(at, at + TYPED_PIECE));
  }

  resize(columns, rows) {
    this.size = { columns, rows };
    this.say({ kind: "size", columns, rows });
  }

  say(message) {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }
}
