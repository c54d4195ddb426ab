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

const probe = document.createElement("span");
/** A colour of the present theme as `#rrggbb`, for canvases and files. @param {string} token */
export function colour(token) {
  if (!probe.isConnected) document.documentElement.append(probe);
  probe.style.color = `var(${token})`;
  const [red, green, blue] = getComputedStyle(probe).color.match(/\d+/g)?.map(Number) ?? [0, 0, 0];
  return `#${((1 << 24) + (red << 16) + (green << 8) + blue).toString(16).slice(1)}`;
}
