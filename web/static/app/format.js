// Numbers, times and sizes as people read them.

/** A metric: four significant digits, without noise. NaN and infinities by name. @param {any} value */
export function metric(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value;
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e7) return value.toLocaleString("en-US");
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2).replace("e+", "e");
  return Number(value.toPrecision(4)).toString();
}

/** @param {number | null | undefined} value */
export const count = (value) => (value === null || value === undefined ? "–" : Number(value).toLocaleString("en-US"));

/** `1 trial`, `2 trials`. @param {number} n @param {string} noun */
export const many = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;

/** @param {number | string | null | undefined} value in bytes */
export function bytes(value) {
  let size = Number(value ?? 0);
  if (!size) return "0 B";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${size >= 100 || unit === 0 ? Math.round(size) : size.toPrecision(3)} ${units[unit]}`;
}

/** `3 min`, `2 h 5 min`. @param {number} seconds */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  const m = Math.floor(s / 60);
  if (m < 60) return s % 60 && m < 10 ? `${m} min ${s % 60} s` : `${m} min`;
  const hours = Math.floor(m / 60);
  if (hours < 48) return m % 60 ? `${hours} h ${m % 60} min` : `${hours} h`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** @param {string} start @param {string | null} [end] */
export const lasted = (start, end) => duration(((end ? Date.parse(end) : Date.now()) - Date.parse(start)) / 1000);

/** `5 min ago`. @param {string | number | null | undefined} time */
export function ago(time) {
  if (!time) return "–";
  const seconds = (Date.now() - new Date(time).getTime()) / 1000;
  if (Math.abs(seconds) < 5) return "just now";
  return seconds < 0 ? `in ${duration(-seconds)}` : `${duration(seconds)} ago`;
}

const EXACT = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
/** @param {string | number | null | undefined} time */
export const exact = (time) => (time ? EXACT.format(new Date(time)) : "");

/** Hours, minutes, seconds of the reader's day. @param {string | number} time */
export const clock = (time) => new Date(time).toLocaleTimeString([], { hour12: false });

/** The state's word without the wire's prefixes. @param {string} state */
export const stateOf = (state) => (state ?? "").replace(/^(GENERIC_TASK_)?STATE_/, "");

/** @param {any} value of a hyperparameter */
export const hparam = (value) =>
  typeof value === "number" ? metric(value) : typeof value === "string" ? value : JSON.stringify(value);
