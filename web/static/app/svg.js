// Pictures of the page: as wide as their place, and as files with the colours that they have there.
import { useEffect, useRef, useState } from "./html.js";
import { colour } from "./theme.js";
import { saveCanvas, saveText } from "./save.js";

const LOOKS = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-family", "font-size", "font-weight", "text-anchor", "paint-order"];

/** @param {SVGSVGElement} picture */
function drawing(picture) {
  const copy = /** @type {SVGSVGElement} */ (picture.cloneNode(true));
  const [shown, kept] = [picture, copy].map((each) => each.querySelectorAll("rect, line, polyline, polygon, path, circle, text, tspan"));
  shown.forEach((element, i) => {
    const style = getComputedStyle(element);
    for (const look of LOOKS) kept[i].setAttribute(look, style.getPropertyValue(look));
    kept[i].removeAttribute("class");
    kept[i].removeAttribute("style");
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  const { width, height } = picture.viewBox.baseVal;
  const paper = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  for (const [key, value] of Object.entries({ width, height, fill: colour("--surface") })) paper.setAttribute(key, String(value));
  copy.prepend(paper);
  return { copy, width, height };
}

/** @param {SVGSVGElement | null} picture @param {string} name */
export function saveSvg(picture, name) {
  if (picture) saveText(new XMLSerializer().serializeToString(drawing(picture).copy), name, "image/svg+xml");
}

/** Twice as many pixels as it has on the page. @param {SVGSVGElement | null} picture @param {string} name */
export function savePng(picture, name) {
  if (!picture) return;
  const { copy, width, height } = drawing(picture);
  for (const [key, value] of Object.entries({ width, height })) copy.setAttribute(key, String(2 * value));
  const image = new Image();
  image.onload = () => {
    const canvas = Object.assign(document.createElement("canvas"), { width: 2 * width, height: 2 * height });
    canvas.getContext("2d")?.drawImage(image, 0, 0);
    saveCanvas(canvas, name);
  };
  image.src = `data:image/svg+xml,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
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
