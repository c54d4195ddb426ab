// One stream of notices for all tabs of a browser. It runs in a shared worker, or in the page where there is none.

/**
 * What a tab is told. `first`: from now on this topic's points come.
 * @typedef {{kind: "version", topic: string, version: string, first: boolean} | {kind: "points", topic: string, points: any[]}
 *   | {kind: "reset" | "gone", topic: string} | {kind: "away", is: boolean} | {kind: "release", digest: string}} News
 * @typedef {{topics: Set<string>, tell: (news: News) => void, heard: number}} Tab
 */

const MOST_TOPICS = 200;
const FIRST_RETRY_MS = 300;
const LAST_RETRY_MS = 2000;
const SETTLE_MS = 20;
/** A tab says that it is there every 30 s, every minute in the background. One that crashed says nothing. */
const SILENT_MS = 200_000;

export class Stream {
  constructor() {
    /** @type {Map<any, Tab>} */
    this.tabs = new Map();
    /** The latest version of each topic whose points come. @type {Map<string, string>} */
    this.versions = new Map();
    /** @type {EventSource | null} */
    this.source = null;
    this.address = "";
    this.retry = 0;
    this.isAway = false;
    this.digest = "";
    /** @type {any} */
    this.timer = undefined;
  }

  /** A tab shows these topics from now on. @param {any} id @param {string[]} topics @param {(news: News) => void} tell */
  set(id, topics, tell) {
    const known = this.tabs.get(id)?.topics;
    this.tabs.set(id, { topics: new Set(topics), tell, heard: Date.now() });
    if (!known) {
      if (this.digest) tell({ kind: "release", digest: this.digest });
      tell({ kind: "away", is: this.isAway });
    }
    for (const topic of topics) {
      const version = this.versions.get(topic);
      if (version !== undefined && !known?.has(topic)) tell({ kind: "version", topic, version, first: true });
    }
    this.soon(SETTLE_MS);
  }

  /** A tab is there. @param {any} id */
  hear(id) {
    const tab = this.tabs.get(id);
    if (tab) tab.heard = Date.now();
  }

  /** A tab is closed. @param {any} id */
  drop(id) {
    if (this.tabs.delete(id)) this.soon(SETTLE_MS);
  }

  /** Somebody else is logged in, or nobody: what came so far says nothing about what they may see. */
  restart() {
    this.close();
    this.soon(SETTLE_MS);
  }

  close() {
    this.source?.close();
    this.source = null;
    this.address = "";
    this.versions.clear();
  }

  /** @param {number} ms */
  soon(ms) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.open(), ms);
  }

  open() {
    for (const [id, tab] of this.tabs) if (Date.now() - tab.heard > SILENT_MS) this.tabs.delete(id);
    const topics = [...new Set([...this.tabs.values()].flatMap((tab) => [...tab.topics]))].sort().slice(0, MOST_TOPICS);
    const address = topics.map((topic) => `topic=${encodeURIComponent(topic)}`).join("&");
    if (!topics.length) return this.close();
    if (this.source && address === this.address && this.source.readyState !== EventSource.CLOSED) return;
    // The one before stays open until this one has begun with all that both follow: no point is lost between them.
    const before = this.source;
    const waited = new Set(topics.filter((topic) => this.versions.has(topic)));
    for (const topic of this.versions.keys()) if (!topics.includes(topic)) this.versions.delete(topic);
    this.address = address;
    const own = (this.source = new EventSource(`/api/v1/undeterred/live?${address}`));
    const begun = (/** @type {string} */ topic) => {
      waited.delete(topic);
      if (!waited.size) before?.close();
    };
    if (!waited.size) before?.close();
    own.addEventListener("hello", (event) => {
      this.digest = JSON.parse(event.data).digest;
      this.retry = 0;
      this.tell({ kind: "release", digest: this.digest });
      this.away(false);
    });
    own.addEventListener("version", (event) => {
      const { topic, version } = JSON.parse(event.data);
      const first = !this.versions.has(topic);
      if (this.versions.get(topic) !== version) {
        this.versions.set(topic, version);
        this.tell({ kind: "version", topic, version, first });
      }
      begun(topic);
    });
    own.addEventListener("points", (event) => this.tell({ kind: "points", ...JSON.parse(event.data) }));
    own.addEventListener("reset", (event) => this.tell({ kind: "reset", ...JSON.parse(event.data) }));
    own.addEventListener("gone", (event) => {
      const { topic } = JSON.parse(event.data);
      this.versions.delete(topic);
      this.tell({ kind: "gone", topic });
      begun(topic);
    });
    const again = () => {
      own.close();
      before?.close();
      if (own !== this.source) return;
      this.close();
      this.away(true);
      this.retry = Math.min(LAST_RETRY_MS, this.retry ? this.retry * 1.6 : FIRST_RETRY_MS);
      this.soon(this.retry);
    };
    own.addEventListener("ended", again);
    own.onerror = again;
  }

  /** @param {boolean} is */
  away(is) {
    if (is !== this.isAway) this.tell({ kind: "away", is });
    this.isAway = is;
  }

  /** To all tabs that show the topic; without one, to all. @param {News} news */
  tell(news) {
    for (const tab of this.tabs.values()) if (!("topic" in news) || tab.topics.has(news.topic)) tab.tell(news);
  }
}
