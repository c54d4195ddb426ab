"""Makes docs/compatibility.md from what the compatibility tests saw (`docs/compatibility/seen.json`)."""

from __future__ import annotations

import csv
import json
from collections import Counter
from itertools import groupby
from pathlib import Path

DATA = Path(__file__).resolve().parent / "compatibility"
CLIENTS = ("0.38.1", "0.21.0")
_NOT_SERVED = "not yet"
_SHOWN = {"works": "works", "": "not called"}
_PROVIDER = "belongs to a provider of logins (SSO, SAML, SCIM), a product of others"
_KUBERNETES = "the tests' cluster has no Kubernetes; where an agent stands for one, it is served"
#: Why what answers 501 does so, by what its name contains.
_WHY = {
    "auth login": "opens a browser at a provider of logins, a product of others",
    "oauth": _PROVIDER,
    "k8s-resource-managers": "one agent stands for one cluster: `det agent list` shows them",
    "k8s": _KUBERNETES,
    "namespace-bindings": _KUBERNETES,
    "resource-quota": _KUBERNETES,
    "workspace bindings": _KUBERNETES,
    "hyperparameter-importance": "clients after 0.21 do not ask for it; ours is `experiments/{id}/importance`",
    "trial-comparison": "clients after 0.21 have no collections of trials; `POST /api/v1/runs` filters and sorts them",
}
_HEAD = """# Compatibility with Determined's clients

Generated from `docs/compatibility/seen.json`, which the tests in `tests/compat` write: they run the clients as they
were published, `determined` 0.38.1 and 0.21.0 from PyPI, against this server, and note each command and each answer.

- **works**: the command or program did what it is for; the endpoint answered a client's request with success.
- **differs**: it works, but not as with Determined: the cell says how.
- **not served**: the server answers that it does not do this: the cell says why.
- **refused**: the endpoint is there, and refused what the tests tried: the cell says with which status.
- **the client itself**: the published client gets it wrong, whatever a server answers.
- **not called**: no command, program or call of the tests made the client ask for it.
- —: that client does not have it.

`GET /info` gives 0.38.1 as the master's `version`, the newest release whose wire this server speaks: an older client
says, as it did, that there is a newer one. Our own number is beside it as `undeterred_version`.

`PyTorchTrial` [runs with our harness](training-pytorch.md); all trial classes do with Determined's own package in the
trials' Python, on one slot and on several ([more](trial-python.md#trial-classes)):

```text
python3 -m venv ~/determined
~/determined/bin/pip install determined==0.38.1 torch tensorboard
UNDETERRED_TRIAL_PYTHON=~/determined/bin/python det up
```
"""


def page() -> str:
    """The page as Markdown."""
    seen: dict[str, dict[str, dict[str, str]]] = json.loads((DATA / "seen.json").read_text())
    commands, endpoints = _rows("commands.csv"), _rows("endpoints.csv")
    for row in endpoints:
        row["key"] = f"{row['method']} {row['path']}"
    for row in commands:
        row["key"] = row["command"]
    lines = [_HEAD]
    lines += _summary("commands", commands, seen["commands"])
    lines += _summary("endpoints", endpoints, seen["endpoints"])
    lines += ["", "## Programs with the SDK and the Core API", ""]
    lines += _table("what", list(seen["programs"]), seen["programs"])
    lines += ["", "## Commands of `det`"]
    for group, members in groupby(commands, key=lambda row: row["command"].split()[0]):
        lines += ["", f"### {group}", "", *_table("command", list(members), seen["commands"])]
    lines += ["", "## Endpoints"]
    for area, members in groupby(endpoints, key=lambda row: row["area"]):
        lines += ["", f"### {area}", "", *_table("endpoint", list(members), seen["endpoints"])]
    return "\n".join(lines) + "\n"


def _summary(what: str, rows: list[dict[str, str]], seen: dict[str, dict[str, str]]) -> list[str]:
    lines: list[str] = []
    for client in CLIENTS:
        cells = [_cell(row, client, seen.get(row["key"], {})) for row in rows]
        counts = Counter(cell.partition(":")[0] for cell in cells if cell != "—")
        told = ", ".join(f"{count} {name}" for name, count in counts.most_common())
        lines.append(f"- {sum(counts.values())} {what} of {client}: {told}")
    return lines


def _table(title: str, rows: list[dict[str, str]] | list[str], seen: dict[str, dict[str, str]]) -> list[str]:
    is_rated = any(isinstance(row, dict) and "priority" in row for row in rows)
    columns = [title, *(["priority"] if is_rated else []), *CLIENTS]
    lines = [f"| {' | '.join(columns)} |", f"| {' | '.join('---' for _ in columns)} |"]
    for row in rows:
        if isinstance(row, str):
            row = {"key": row, "clients": " ".join(seen[row]), "plain": "yes"}
        key = row["key"] if "plain" in row else f"`{row['key']}`"
        cells = [_cell(row, client, seen.get(row["key"], {})) for client in CLIENTS]
        lines.append(f"| {' | '.join([key, *([row['priority']] if is_rated else []), *cells])} |")
    return lines


def _cell(row: dict[str, str], client: str, results: dict[str, str]) -> str:
    if client not in row["clients"].split() and client not in results:
        return "—"
    result = results.get(client, "")
    if result.partition(":")[0] == _NOT_SERVED:
        why = next((why for part, why in _WHY.items() if part in row["key"]), "this release does not have it")
        return f"not served: {why}".replace("|", "\\|")
    return _SHOWN.get(result, result).replace("|", "\\|")


def _rows(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(newline="") as file:
        return list(csv.DictReader(file))
