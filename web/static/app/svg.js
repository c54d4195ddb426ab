// A picture of the page as a file: with the colours that it has there, since a file knows none of the tokens.
import { colour } from "./theme.js";
import { saveText } from "./save.js";

const LOOKS = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-family", "font-size", "font-weight", "text-anchor", "paint-order"];

/** @param {SVGSVGElement | null} picture @param {string} name */
export function saveSvg(picture, name) {
  if (!picture) return;
  const copy = /** @type {SVGSVGElement} */ (picture.cloneNode(true));
  const [shown, kept] = [picture, copy].map((each) => each.querySelectorAll("rect, line, polyline, path, circle, text, tspan"));
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
  saveText(new XMLSerializer().serializeToString(copy), name, "image/svg+xml");
}
