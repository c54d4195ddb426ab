// What every component needs: Preact with tagged templates instead of a build step.
import { cloneElement, createContext, h, render, Fragment } from "../vendor/preact.js";
import * as hooks from "../vendor/hooks.js";
import htm from "../vendor/htm.js";

export const html = htm.bind(h);
export const { useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback, useContext, useId } = hooks;
export { cloneElement, createContext, h, render, Fragment };
