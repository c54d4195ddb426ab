// Login: name and password; then the address that was asked for.
import { html, useState } from "../html.js";
import { go, safe } from "../router.js";
import { login } from "../session.js";
import { sentence } from "../ui.js";

/** @param {{target: string | null, onLogin: () => void}} props */
export function Login({ target, onLogin }) {
  const [error, setError] = useState(/** @type {any} */ (null));
  const [busy, setBusy] = useState(false);
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
    <label class="field">User<input name="username" autocomplete="username" required autofocus /></label>
    <label class="field">Password<input name="password" type="password" autocomplete="current-password" /></label>
    ${error && html`<p class="band bad" role="alert">${sentence(error)}</p>`}
    <button class="first" disabled=${busy}>Log in</button>
    <p class="muted">No account? An administrator makes one: <code>det user create</code>.</p></form></main>`;
}
