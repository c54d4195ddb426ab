"""Shell completion: `det completion SHELL` prints a script, which asks `det __complete` at each Tab.

Commands and options come from the commands themselves. Ids and names come from the cluster by one request, whose answer
is valid for ten seconds; while the cluster does not answer there are none, without a message.

typer's own completion is left alone. It renders each help text by rich, which costs more than all the rest of a Tab; it
completes no file names in bash; and what resolves a half-typed line is private to typer since it carries click within.
"""

from __future__ import annotations

import enum
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from cli import commands, render, session
from cli.group import command_of, new_app

app = new_app("Shell completion, with the ids and names that the cluster has.")

#: What can be put in, and a word on it.
Candidate = tuple[str, str]

FILES: Candidate = (":files", "")
"""Stands for: the shell knows better, it completes files."""

_FRESH_S = 10.0
_TIMEOUT_S = 1.0
_MOST_EXPERIMENTS = 100
_MOST_TRIALS = 500
_GLOBAL_OPTIONS = (
    ("-m", "the cluster"),
    ("--master", "the cluster"),
    ("-u", "the user"),
    ("--user", "the user"),
    ("-v", "the version of this client"),
    ("--version", "the version of this client"),
    ("-h", "help"),
    ("--help", "help"),
)

_BASH = r"""# Shell completion of `det`: put  source <(det completion bash)  into ~/.bashrc
_det() {
    local value help
    COMPREPLY=()
    while IFS=$'\t' read -r value help; do
        if [[ $value == :files ]]; then compopt -o default 2>/dev/null; else COMPREPLY+=("$value"); fi
    done < <(det __complete bash "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
}
complete -F _det det
"""

_ZSH = r"""#compdef det
# Shell completion of `det`: put  source <(det completion zsh)  into ~/.zshrc, after compinit
_det() {
    local line value files=0
    local -a found
    for line in "${(@f)$(det __complete zsh "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        value="${line%%$'\t'*}"
        if [[ $value == :files ]]; then
            files=1
        elif [[ -n $value ]]; then
            found+=("${value//:/\\:}:${line#*$'\t'}")
        fi
    done
    (( $#found )) && _describe -V det found
    (( files )) && _files
}
compdef _det det
"""

_FISH = r"""# Shell completion of `det`: put  det completion fish | source  into ~/.config/fish/config.fish
function __det
    set -l words (commandline -opc)
    set -l last (commandline -ct)
    for line in (det __complete fish $words[2..-1] "$last" 2>/dev/null)
        if string match -q ':files*' -- $line
            __fish_complete_path "$last"
        else
            echo $line
        end
    end
end
complete -c det -f -k -a '(__det)'
"""

_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}

Shell = Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="bash, zsh or fish.", show_default=False)]


def command() -> Any:
    """The group as a command."""
    return command_of(app)


@app.command("completion")
def completion(shell: Shell) -> None:
    """Print the script that makes a shell complete `det`; its first line says where to put it."""
    render.say(_SCRIPTS[shell].rstrip("\n"))


def answer(arguments: Sequence[str]) -> int:
    """`det __complete SHELL WORD…`: print what the last word may become, one to a line, with a tab before the help."""
    shell, *words = arguments
    if shell == "bash":  # it sends the line: its own words end at each `=` and `:`
        words = _split(words[0])[1:]
    prefix = ""
    last = words[-1] if words else ""
    if shell != "bash" and last.startswith("--") and "=" in last:
        prefix = last.partition("=")[0] + "="
    for value, help in candidates(words):
        sys.stdout.write(f"{prefix if (value, help) != FILES else ''}{value}\t{help.splitlines()[0] if help else ''}\n")
    return 0


def candidates(words: Sequence[str]) -> list[Candidate]:
    """What the last of the words after `det` may become."""
    *before, last = words or [""]
    options, rest = _global_options(before)
    session.configure(options.get("master"), options.get("user"))
    if rest is None:
        found: list[Candidate] = _live("user") if before[-1] in ("-u", "--user") else []
    elif not rest and last.startswith("-"):
        found = list(_GLOBAL_OPTIONS)
    elif not rest:
        found = [(name, entry.help) for entry in commands.ENTRIES for name in (entry.name, *entry.synonyms)]
    else:
        entry = commands.find(rest[0])
        if entry is None:
            return []
        found = _of_command(entry, rest[1:], last)
    typed = last.partition("=")[2] if last.startswith("--") and "=" in last else last
    return [candidate for candidate in found if candidate == FILES or candidate[0].startswith(typed)]


def _split(line: str) -> list[str]:
    """The words of a command line up to the cursor; the last is empty if it has not begun."""
    import shlex

    for closing in ("", "'", '"'):  # within quotes, too
        try:
            words = shlex.split(line + closing)
        except ValueError:
            continue
        return [*words, ""] if not closing and line[-1:].isspace() else words
    return line.split(" ")


def _global_options(before: Sequence[str]) -> tuple[dict[str, str], Sequence[str] | None]:
    """What stands before the command, and the command with what follows; None while an option waits for its value."""
    given: dict[str, str] = {}
    at = 0
    while at < len(before) and before[at].startswith("-"):
        name, equals, value = before[at].partition("=")
        key = {"-m": "master", "--master": "master", "-u": "user", "--user": "user"}.get(name)
        if key is not None and not equals:
            at += 1
            if at == len(before):
                return given, None
            value = before[at]
        if key is not None:
            given[key] = value
        at += 1
    return given, before[at:]


def _of_command(entry: commands.Entry, words: Sequence[str], last: str) -> list[Candidate]:
    import importlib

    at: Any = importlib.import_module(f"cli.{entry.module}").command()
    words = [entry.word, *words] if entry.word else words
    group = entry.name
    rest = list(words)
    while hasattr(at, "commands") and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        at = at.get_command(None, name)
        if at is None:
            return []
        group = name if hasattr(at, "commands") else group
    if hasattr(at, "commands"):
        found = [(name, _short_help(one)) for name, one in at.commands.items() if not one.hidden]
        return [("-h", "help"), ("--help", "help")] if last.startswith("-") else found
    return _of_words(at, rest, last, group)


def _of_words(command: Any, words: Sequence[str], last: str, group: str) -> list[Candidate]:
    """Options of a command, or values of the option or argument that comes next."""
    options = {name: option for option in command.params for name in (*option.opts, *option.secondary_opts)}
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    waiting: Any = None
    count = 0
    for word in words:
        if waiting is not None:
            waiting = None
        elif word.startswith("-") and len(word) > 1:
            option = options.get(word)
            waiting = option if option is not None and not option.is_flag else None
        else:
            count += 1
    if waiting is not None:
        return _values(waiting, group)
    name, equals, _ = last.partition("=")
    if equals and name in options:
        return _values(options[name], group)
    if last.startswith("-"):
        return [
            *((name, option.help or "") for name, option in options.items() if name.startswith("-")),
            ("--help", "help"),
        ]
    if count < len(arguments):
        return _values(arguments[count], group)
    if arguments and arguments[-1].nargs == -1:
        return _values(arguments[-1], group)
    return []


def _values(parameter: Any, group: str) -> list[Candidate]:
    choices = tuple(_choices(parameter.type_descriptor.annotation))
    if choices:
        return [(choice, "") for choice in choices]
    if Path in (parameter.type_descriptor.annotation, *get_args(parameter.type_descriptor.annotation)):
        return [FILES]
    names = [parameter.metavar or "", *parameter.opts, f"{group} {parameter.name}"]
    for name in names:
        kind = _KINDS.get(name.lower().strip("-.").replace("-", "_"))
        if kind is not None:
            return _live(kind)
    return []


def _choices(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    elif isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        yield from (str(member.value) for member in annotation)
    else:
        for part in get_args(annotation):
            yield from _choices(part)


def _short_help(command: Any) -> str:
    return str(command.short_help or command.help or "").strip().partition("\n")[0]


# -- what the cluster has ------------------------------------------------------------------------------------------


def _live(kind: str) -> list[Candidate]:
    """What the cluster has of a kind: from the cache if that is fresh. An answer that did not come is kept as well, so
    that not every Tab waits for it."""
    try:
        path = _cache_file(kind)
        if time.time() - path.stat().st_mtime < _FRESH_S:
            return [(value, help) for value, help in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError):
        pass  # not asked yet, or half of a file: ask
    try:
        found = _SOURCES[kind]()
    except Exception:  # noqa: BLE001 -- a Tab that finds nothing has nothing to say, whatever the reason
        found = []
    _keep(kind, found)
    return found


def _keep(kind: str, found: Sequence[Candidate]) -> None:
    try:
        path = _cache_file(kind)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(found), encoding="utf-8")
        partial.replace(path)
    except OSError:
        return  # a cache that can't be written makes the next Tab slower, nothing more


def _cache_file(kind: str) -> Path:
    configured = os.environ.get("UNDETERRED_CACHE")
    base = Path(configured) if configured else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    whose = f"{session.master_url()} {session.wanted_user() or ''} {os.environ.get('DET_USER', '')}"
    folder = base if configured else base / "undeterred"
    return folder / "completion" / f"{kind}-{hashlib.sha256(whose.encode()).hexdigest()[:16]}.json"


def _get(path: str, **params: Any) -> dict[str, Any]:
    known = session.at_hand()
    if known is None:
        return {}
    try:
        return known.get(f"/api/v1/{path}", params, timeout_s=_TIMEOUT_S).json()
    finally:
        known.close()


def _recent() -> list[dict[str, Any]]:
    """The latest experiments. This one request tells of trials as well."""
    params = {"sortBy": "SORT_BY_ID", "orderBy": "ORDER_BY_DESC", "archived": False, "limit": _MOST_EXPERIMENTS}
    return _get("experiments", **params).get("experiments") or []


def _experiments() -> list[Candidate]:
    return [(str(e["id"]), f"{render.state(e['state'])} {e.get('name') or ''}") for e in _recent()]


def _trials() -> list[Candidate]:
    found: list[Candidate] = []
    for e in _recent():
        ids: list[int] = e.get("trialIds") or []
        found += [(str(trial_id), f"of experiment {e['id']} {e.get('name') or ''}") for trial_id in ids]
    return found[:_MOST_TRIALS]


def _checkpoints() -> list[Candidate]:
    """Of the latest experiment that has any."""
    for e in _recent():
        if e.get("checkpointCount"):
            body = _get(f"experiments/{e['id']}/checkpoints", limit=100)
            found: list[dict[str, Any]] = body.get("checkpoints") or []
            return [(c["uuid"], f"of trial {render.part(c, 'training').get('trialId')}") for c in found]
    return []


def _named(path: str, key: str, name: str = "name", help: str = "") -> Callable[[], list[Candidate]]:
    def ask() -> list[Candidate]:
        found: list[dict[str, Any]] = _get(path).get(key) or []
        return [(str(one[name]), str(one.get(help) or "")) for one in found]

    return ask


_SOURCES: dict[str, Callable[[], list[Candidate]]] = {
    "experiment": _experiments,
    "trial": _trials,
    "checkpoint": _checkpoints,
    "workspace": _named("workspaces", "workspaces"),
    "model": _named("models", "models", help="description"),
    "template": _named("templates", "templates"),
    "user": _named("users", "users", "username", "displayName"),
    "pool": _named("resource-pools", "resourcePools", help="description"),
    "agent": _named("agents", "agents", "id"),
}

#: By what an argument or option is called, or by its group and name.
_KINDS = {
    "experiment_id": "experiment",
    "experiment_ids": "experiment",
    "experiment_id|file": "experiment",
    "trial_id": "trial",
    "trial_ids": "trial",
    "uuid": "checkpoint",
    "checkpoint_uuid": "checkpoint",
    "checkpoint_uuids": "checkpoint",
    "workspace_name": "workspace",
    "workspace_names": "workspace",
    "model_name": "model",
    "model name": "model",
    "template": "template",
    "template_name": "template",
    "username": "user",
    "user_name": "user",
    "resource_pool": "pool",
    "pool_name": "pool",
    "default_compute_pool": "pool",
    "default_aux_pool": "pool",
    "agent_id": "agent",
}
