// Parts of the pages that are loaded when they are shown first.
import { html, useEffect, useState } from "./html.js";
import { Failed } from "./ui.js";
import { Problem, get } from "./api.js";

const [LOADED, SOONEST_MS, RETRY_MS] = ["loaded", 20_000, 1000];

/** @type {Map<string, any>} */
const loaded = new Map();

/**
 * A component of a module that is not loaded yet. A module of an earlier release is gone: then the page is loaded again.
 * @param {string} name of the export
 * @param {() => Promise<any>} load
 */
export function lazy(name, load) {
  /** Load it, and ask for what its module says that it reads first (`early`). @param {any} params of the address */
  Lazy.start = (params) => load().then((module) => module.early?.(params), () => {}); // what fails here fails again below, where it is shown
  return Lazy;

  /** @param {any} props */
  function Lazy(props) {
    const [found, setFound] = useState(() => loaded.get(name));
    const [error, setError] = useState(/** @type {any} */ (null));
    useEffect(() => {
      if (found) return;
      load().then(
        (module) => {
          loaded.set(name, module[name]);
          setFound(() => module[name]);
        },
        () => setError(new Problem(0, "this part of the page could not be loaded: the API is away, or has newer pages")),
      );
    }, []);
    // A browser does not ask again for a module that failed: the page is loaded again once the API is there, but not on and on.
    useEffect(() => {
      if (!error || Date.now() - Number(sessionStorage.getItem(LOADED)) < SOONEST_MS) return;
      const timer = setInterval(() => get("master").then(() => { sessionStorage.setItem(LOADED, String(Date.now())); location.reload(); }, () => {}), RETRY_MS);
      return () => clearInterval(timer);
    }, [error]);
    if (error) return html`<${Failed} error=${error} again=${() => location.reload()} />`;
    return found ? html`<${found} ...${props} />` : null;
  }
}
