// How a part of a log is asked for.
import { query } from "./api.js";

export const LEVELS = ["", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"];
const PIECE = 200;

/** A level and those that are worse. @param {string} level */
export const from = (level) => (level ? LEVELS.slice(LEVELS.indexOf(level)) : []);

/** @param {string} of `tasks/<id>` or `trials/<number>` @param {Record<string, any>} where @param {string} search @param {string} level */
export const windowPath = (of, where, search, level) => `undeterred/${of}/log-window${query({ ...where, search, levels: from(level), limit: PIECE })}`;
