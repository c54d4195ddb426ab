"""`det auth`: log in by an identity provider (single sign-on)."""

from __future__ import annotations

import http.server
import time
import webbrowser
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

import typer

from cli import render, session
from cli.group import command_of, new_app
from cli.options import lists
from cli.render import Form

app = new_app("Log in by an identity provider (single sign-on).")

#: Where the page of the master sends the token. Of Determined's `det` too, so that one master serves both.
PORT = 49176
_WAITS_S = 600.0


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("login")
def login(
    provider: Annotated[str, typer.Option("--provider", "-p", help="One of `det auth list-providers`.")] = "",
    headless: Annotated[
        bool, typer.Option("--headless", help="Paste what the browser of another machine got.")
    ] = False,
) -> None:
    """Log in by an identity provider, in a browser; the session is kept until `det user logout`."""
    from determined.common.api import Cert, Session, authentication

    url = session.master_url()
    address = f"{_chosen(provider)['ssoUrl']}?relayState=cli"
    token = _pasted(address) if headless else _sent(address)
    master = Session(url, "", token, Cert.of(url))
    name = str(master.get("/api/v1/me").json()["user"]["username"])
    authentication.TokenStore().set(url, name, token)
    render.say(f"Logged in as user '{name}' at {url}")


@app.command("list-providers")
@lists
def list_providers(form: Form) -> None:
    """List the identity providers of the cluster."""
    found = _providers()
    rows = [[each["name"], each["type"], each["ssoUrl"]] for each in found]
    render.listing(["Name", "Type", "Address"], rows, form, raw=found)


def _providers() -> list[dict[str, Any]]:
    return session.anonymous().get("/api/v1/master").json().get("ssoProviders") or []


def _chosen(name: str) -> dict[str, Any]:
    found = _providers()
    if not found:
        raise ValueError("this cluster has no identity provider: log in with `det user login NAME`.")
    names = ", ".join(each["name"] for each in found)
    if not name and len(found) > 1:
        raise ValueError(f"--provider: expected one of {names}.")
    known = next((each for each in found if not name or each["name"] == name), None)
    if known is None:
        raise ValueError(f"--provider: {name!r}: expected one of {names}.")
    return known


def _pasted(address: str) -> str:
    render.say(f"In a browser, open {address}")
    text = str(typer.prompt("The address of the link that you get there, or its token", hide_input=True)).strip()
    return parse_qs(urlsplit(text).query).get("token", [""])[0] if "://" in text else text


def _sent(address: str) -> str:
    """Wait for the browser to bring the token. Raises: ValueError."""
    tokens: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = parse_qs(urlsplit(self.path).query).get("token", [])
            tokens.extend(found)
            text = b"You are logged in, and may close this page." if found else b"There is no token here."
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: it would show the token."""

    try:
        server = http.server.HTTPServer(("localhost", PORT), Handler)
    except OSError as error:
        raise ValueError(f"port {PORT} of this machine: {error.strerror}: use `det auth login --headless`.") from None
    with server:
        render.note(f"log in in your browser; if none opened: {address}")
        webbrowser.open(address)
        server.timeout = 1.0
        deadline = time.monotonic() + _WAITS_S
        while not tokens and time.monotonic() < deadline:
            server.handle_request()
    if not tokens:
        raise ValueError(f"no browser logged in within {_WAITS_S:g} s.")
    return tokens[0]
