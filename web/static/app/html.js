// What every component needs: Preact with tagged templates instead of a build step.
import { h, render, Fragment } from "../vendor/preact.js";
import * as hooks from "../vendor/hooks.js";
import htm from "../vendor/htm.js";

export const html = htm.bind(h);
export const { useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback } = hooks;
export { h, render, Fragment };
