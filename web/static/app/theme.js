// Light, dark, or as the system has it. Kept in this browser.
const KEY = "theme";
const NAMES = ["system", "light", "dark"];

export function themeName() {
  const kept = localStorage.getItem(KEY) ?? "system";
  return NAMES.includes(kept) ? kept : "system";
}

export const nextTheme = () => NAMES[(NAMES.indexOf(themeName()) + 1) % NAMES.length];

/** @param {string} name */
export function applyTheme(name) {
  localStorage.setItem(KEY, name);
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  window.dispatchEvent(new Event("theme"));
}

/** A colour of the present theme, for canvases. @param {string} token */
export const colour = (token) => getComputedStyle(document.documentElement).getPropertyValue(token).trim();
