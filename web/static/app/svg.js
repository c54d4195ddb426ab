// A picture as a file that needs nothing else: its title, what is drawn, and a legend, in the colours of the theme.
import { useEffect, useRef, useState } from "./html.js";
import { colour } from "./theme.js";
import { offer, saveText } from "./save.js";

/**
 * An entry of a legend. `shape`: a box, a line, or a band with its line; a box with a `stroke` has an edge.
 * @typedef {{label: string, shape?: "box" | "line" | "band", fill?: string, stroke?: string, width?: number, dash?: string}} Key
 * What is drawn, with what stands above and below it.
 * @typedef {{body: string, width: number, height: number, title: string, about?: string, keys?: Key[]}} Drawing
 */

const LOOKS = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-weight", "text-anchor", "paint-order"];
const DRAWN = "rect, line, polyline, polygon, path, circle, text, tspan";
/** Of those who look and listen to a page, not of a file. */
const OF_PAGES = /^(class|style|role|tabindex|aria-.*|data-.*)$/;
const [PAD, HEAD, ABOUT, ROW, LEAST_WIDTH] = [16, 26, 18, 18, 260];
const FONT = "system-ui, sans-serif";

/** @param {string} text */
const escaped = (text) => text.replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c] ?? c);

/** An element as text. @param {string} name @param {Record<string, any>} attributes @param {string} [inside] */
export const tag = (name, attributes, inside = "") =>
  `<${name}${Object.entries(attributes).filter(([, value]) => value !== undefined && value !== null).map(([key, value]) => ` ${key}="${escaped(String(value))}"`).join("")}>${inside}</${name}>`;

/** Words at a place. @param {number} x @param {number} y @param {string} words @param {Record<string, any>} [attributes] */
export const words = (x, y, words, attributes = {}) => tag("text", { x, y, fill: colour("--ink-2"), ...attributes }, escaped(words));

/** A colour as programs other than browsers read it: `#rrggbb`, and how opaque it is. @param {string} css a colour, or `var(--token)` @returns {[string, number]} */
export function plain(css) {
  const named = css.replace(/var\((--[\w-]+)\)/, (_, token) => colour(token));
  const pen = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
  pen.fillStyle = named;
  const text = String(pen.fillStyle);
  const parts = text.match(/[\d.]+/g)?.map(Number) ?? [];
  if (text.startsWith("#")) return [text, 1];
  return [`#${parts.slice(0, 3).map((part) => Math.round(part).toString(16).padStart(2, "0")).join("")}`, parts[3] ?? 1];
}

/** `fill` or `stroke` as attributes. @param {"fill" | "stroke"} kind @param {string} css @returns {Record<string, any>} */
export function paint(kind, css) {
  if (css === "none" || css.startsWith("url(")) return { [kind]: css };
  const [rgb, alpha] = plain(css);
  return alpha === 0 ? { [kind]: "none" } : { [kind]: rgb, [`${kind}-opacity`]: alpha < 1 ? alpha : undefined };
}

/** What the page shows of a picture, with the looks that style sheets gave it. @param {SVGSVGElement} picture @param {{width?: number, height?: number}} [size] other than on the page */
export function traced(picture, size = {}) {
  const copy = /** @type {SVGSVGElement} */ (picture.cloneNode(true));
  const [shown, kept] = [picture, copy].map((each) => each.querySelectorAll(DRAWN));
  shown.forEach((element, i) => {
    const style = getComputedStyle(element);
    for (const look of LOOKS) {
      const value = style.getPropertyValue(look);
      for (const [key, text] of Object.entries(look === "fill" || look === "stroke" ? paint(look, value) : { [look]: value })) if (text !== undefined) kept[i].setAttribute(key, String(text));
    }
  });
  for (const element of [copy, ...copy.querySelectorAll("*")]) for (const { name } of [...element.attributes]) if (OF_PAGES.test(name)) element.removeAttribute(name);
  const { width, height } = { ...{ width: picture.viewBox.baseVal.width, height: picture.viewBox.baseVal.height }, ...size };
  for (const [key, value] of Object.entries({ width, height })) copy.setAttribute(key, String(value));
  return { body: new XMLSerializer().serializeToString(copy), width, height };
}

/** Where each entry of a legend stands, and how high all are. @param {Key[]} keys @param {number} width */
function placed(keys, width) {
  const pen = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
  pen.font = `11px ${FONT}`;
  let [x, y] = [0, 0];
  const places = keys.map((key) => {
    const needs = markWidth(key) + pen.measureText(key.label).width + 22;
    if (x && x + needs > width) [x, y] = [0, y + ROW];
    x += needs;
    return { key, x: x - needs, y };
  });
  return { places, height: keys.length ? y + ROW + 6 : 0 };
}

/** @param {Key} key */
const markWidth = ({ shape = "box" }) => (shape === "box" ? 18 : 34);

/** @param {Key} key @param {number} x @param {number} y */
function mark({ shape = "box", fill = "none", stroke = "none", width = 1, dash }, x, y) {
  const edge = { ...paint("stroke", stroke), "stroke-dasharray": dash || undefined };
  const line = tag("line", { x1: x, x2: x + 26, y1: y + 6, y2: y + 6, ...edge, "stroke-width": Math.max(2, width) });
  if (shape === "line") return line;
  if (shape === "band") return tag("rect", { x, y, width: 26, height: 12, ...paint("fill", fill) }) + line;
  return tag("rect", { x, y, width: 12, height: 12, rx: 2, ...paint("fill", fill), ...edge, "stroke-width": width });
}

/** The file. @param {Drawing} drawing @param {number} [scale] pixels for each of its own */
export function framed({ body, width, height, title, about, keys = [] }, scale = 1) {
  const inner = Math.max(width, LEAST_WIDTH);
  const top = PAD + HEAD + (about ? ABOUT : 0);
  const legend = placed(keys, inner);
  const [w, h] = [inner + 2 * PAD, top + height + legend.height + PAD];
  const parts = [
    tag("rect", { width: w, height: h, fill: colour("--surface") }),
    words(PAD, PAD + 12, title, { "font-size": 15, "font-weight": 600, fill: colour("--ink") }),
    about ? words(PAD, PAD + 12 + ABOUT, about, { fill: colour("--ink-3") }) : "",
    tag("g", { transform: `translate(${PAD} ${top})` }, body),
    ...legend.places.map(({ key, x, y }) => mark(key, PAD + x, top + height + 8 + y) + words(PAD + x + markWidth(key), top + height + 18 + y, key.label)),
  ];
  return `${tag("svg", { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${w} ${h}`, width: w * scale, height: h * scale, "font-family": FONT, "font-size": 11 }, parts.join(""))}\n`;
}

/** @param {Drawing} drawing @param {string} name */
export const saveSvg = (drawing, name) => saveText(framed(drawing), name, "image/svg+xml");

/** Twice as many pixels as it has on the page. @param {Drawing} drawing @param {string} name */
export async function savePng(drawing, name) {
  const image = new Image();
  image.src = `data:image/svg+xml,${encodeURIComponent(framed(drawing, 2))}`;
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: image.naturalWidth, height: image.naturalHeight });
  canvas.getContext("2d")?.drawImage(image, 0, 0);
  const blob = await new Promise((/** @type {(blob: Blob | null) => void} */ done) => canvas.toBlob(done, "image/png"));
  if (!blob) throw new Error(`${name}: it is too large for a PNG: save it as SVG`);
  offer(blob, name);
}

/** How wide an element is, in pixels: so that what is written in a picture stays readable. @returns {[any, number]} */
export function useWidth() {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [width, setWidth] = useState(700);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const observer = new ResizeObserver(() => setWidth(Math.min(1400, Math.max(240, Math.floor(element.clientWidth)))));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return [box, width];
}
