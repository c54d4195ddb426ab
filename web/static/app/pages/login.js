// Login: name and password; then the address that was asked for.
import { useGet } from "../data.js";
import { html, useEffect, useState } from "../html.js";
import { go, safe } from "../router.js";
import { login } from "../session.js";
import { sentence } from "../ui.js";

/** Why the identity provider's answer opened nothing: by the codes of `api/auth/sign_on.py`. */
const REFUSED = /** @type {Record<string, string>} */ ({
  away: "The identity provider does not answer. Try again, or ask an administrator.",
  denied: "The identity provider did not log you in.",
  failed: "The identity provider's answer can't be used. An administrator finds why in the log of the API.",
  inactive: "This account is deactivated.",
  local: "This account logs in with its password. An administrator can hand it over: det user edit NAME --remote true.",
  stale: "That took too long, or was begun in another browser. Try again.",
  unknown: "There is no account of that name. An administrator makes one: det user create NAME --remote.",
  unnamed: "The identity provider gave no name that a user can have here.",
  unverified: "The identity provider has not confirmed your address.",
});

/** @param {{target: string | null, onLogin: () => void}} props */
export function Login({ target, onLogin }) {
  const [error, setError] = useState(/** @type {any} */ (null));
  const [busy, setBusy] = useState(false);
  const { data } = useGet("master");
  const providers = data?.ssoProviders ?? [];
  const refused = new URLSearchParams(location.search).get("refused");
  const ways = providers.map((/** @type {any} */ each) => `${each.ssoUrl}?redirect=${encodeURIComponent(safe(target))}`);
  useEffect(() => {
    if (!refused && providers[0]?.alwaysRedirect) location.assign(ways[0]);
  }, [ways[0]]);
  const submit = async (/** @type {any} */ event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    setBusy(true);
    setError(null);
    try {
      await login(String(form.get("username")), String(form.get("password")));
      const to = safe(target);
      go(to.startsWith("/det/log") ? "/det/" : to, { replace: true });
      onLogin();
    } catch (problem) {
      setError(problem);
    }
    setBusy(false);
  };
  return html`<main class="login"><form onSubmit=${submit} class="card">
    <h1>Undeterred</h1>
    ${refused && html`<p class="band bad" role="alert">${REFUSED[refused] ?? REFUSED.failed}</p>`}
    ${providers.map((/** @type {any} */ each, /** @type {number} */ at) => html`<p><a class="button first"
      href=${ways[at]}>Log in with ${each.name}</a></p>`)}
    <label class="field">User<input name="username" autocomplete="username" required autofocus /></label>
    <label class="field">Password<input name="password" type="password" autocomplete="current-password" /></label>
    ${error && html`<p class="band bad" role="alert">${sentence(error)}</p>`}
    <button class="first" disabled=${busy}>Log in</button>
    <p class="muted">No account? An administrator makes one: <code>det user create</code>.</p></form></main>`;
}
