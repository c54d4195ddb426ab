// Parts of the pages that are loaded when they are shown first.
import { html, useEffect, useState } from "./html.js";
import { Failed } from "./ui.js";
import { Problem } from "./api.js";

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
    if (error) return html`<${Failed} error=${error} again=${() => location.reload()} />`;
    return found ? html`<${found} ...${props} />` : null;
  }
}
