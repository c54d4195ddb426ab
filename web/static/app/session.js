// Who is logged in, and what they may do.
import { call, get, post } from "./api.js";
import { restart } from "./live.js";

/** @type {{user: any, master: any, roles: any} | null} */
let known = null;

/** The session; null without one. */
export async function load() {
  try {
    const [master, { user }, roles] = await Promise.all([get("master"), get("me"), get("permissions/summary")]);
    known = { user, master, roles };
  } catch (error) {
    if (/** @type {any} */ (error).status !== 401) throw error;
    known = null;
  }
  return known;
}

export const session = () => known;
export const isAdmin = () => Boolean(known?.user?.admin);

/**
 * Whether a role allows it in a workspace; what would be refused is not offered.
 * @param {string} permission without its prefix
 * @param {number | undefined} workspaceId undefined while it is not known, or of what is in none: a role of the whole cluster allows it there
 */
export function may(permission, workspaceId) {
  if (!known) return false;
  if (isAdmin()) return true;
  const { assignments, roles } = known.roles;
  return assignments.some((/** @type {any} */ each) =>
    (each.scopeCluster || each.scopeWorkspaceIds.includes(workspaceId)) &&
    roles.some((/** @type {any} */ role) => role.roleId === each.roleId && role.permissions.some((/** @type {any} */ p) => p.id === `PERMISSION_TYPE_${permission}`)));
}

/** Whether an experiment may be changed: by its owner, and by editors. @param {any} e */
export const mayChange = (e) => e.userId === known?.user?.id || may("UPDATE_EXPERIMENT", e.workspaceId);

/** @param {string} username @param {string} password */
export async function login(username, password) {
  await call("POST", "/api/v1/auth/login", { username, password });
  restart();
  return load();
}

export async function logout() {
  await post("auth/logout");
  restart();
  known = null;
}
