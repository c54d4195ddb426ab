"""Creating an experiment: the configuration with its overrides, the folder, one request."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from cli import render, session
from cli.progress import Meter, progress
from determined import errors
from determined.common.context import IGNORE_FILE, Folder

_CREATE_TIMEOUT_S = 300.0
_MOST_NAMED = 5
_LARGE = 1_000_000
_SEPARATOR = re.compile(r"---\s*(#.*)?$")


def read_config(path: Path, overrides: Sequence[str]) -> str:
    """The text of a configuration with `a.b=c` overrides in it.

    Without overrides it is sent as it is, so that what the cluster says of it fits the file, line by line.

    Raises:
        InvalidExperimentException: The file can't be read, or an override can't be applied.
    """
    return override_config(_read(path), overrides, str(path))


def read_configs(path: Path, overrides: Sequence[str], test_mode: bool = False) -> list[str]:
    """As `read_config`, of each document that the file has. Raises: InvalidExperimentException."""
    return [override_config(each, overrides, str(path), test_mode) for each in _documents(_read(path))]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise errors.InvalidExperimentException(
            f"the configuration {str(path)!r} can't be read: {reason}; give the path of a YAML file."
        ) from None


def _documents(text: str) -> list[str]:
    """The documents of a YAML text, each at the lines that it has there. `---` at the margin always separates them."""
    found: list[str] = []
    lines = text.splitlines(keepends=True)
    marks = [n for n, line in enumerate(lines) if _SEPARATOR.match(line)]
    for begin, end in zip([0, *(n + 1 for n in marks)], [*marks, len(lines)], strict=True):
        part = lines[begin:end]
        if any(line.strip() and not line.lstrip().startswith(("#", "%")) for line in part):
            found.append("\n" * begin + "".join(part))
    return found if len(found) > 1 else [text]


def override_config(text: str, overrides: Sequence[str], origin: str, test_mode: bool = False) -> str:
    """The text of a configuration from `origin` with `a.b=c` overrides in it.

    Raises:
        InvalidExperimentException: An override can't be applied.
    """
    if not overrides and not test_mode:
        return text
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    yaml: Any = YAML()  # YAML 1.2, as the cluster reads it: `1e-4` is a number and `no` a word
    yaml.preserve_quotes = True
    try:
        config: Any = yaml.load(text)
    except YAMLError as error:
        raise errors.InvalidExperimentException(f"{origin}: this is not YAML: {error}") from None
    if not isinstance(config, dict):
        raise errors.InvalidExperimentException(f"{origin}: expected `name: value` lines; overrides need them.")
    for override in overrides:
        key, equals, value = override.partition("=")
        if not key or not equals:
            raise errors.InvalidExperimentException(f"--config {override!r}: expected key.sub=value")
        try:
            _put(config, key.split("."), yaml.load(value) if value else None)
        except (YAMLError, TypeError) as error:
            raise errors.InvalidExperimentException(f"--config {override!r}: {error}") from None
    if test_mode:
        _shorten(config)
    out = io.StringIO()
    yaml.dump(config, out)
    return out.getvalue()


def pack(model_dir: Path | None, includes: Sequence[Path]) -> Folder:
    """The folder and what is put beside it. A small one is read here.

    Raises:
        InvalidContextException: The folder can't be packed.
    """
    if model_dir is None and includes:
        raise errors.InvalidContextException("--include needs a model directory to put things beside; give one.")
    with progress("reading the folder"):
        return read(Folder(model_dir, includes))


def read(folder: Folder) -> Folder:
    """The same, once its files were read if they are few. Raises: InvalidContextException."""
    if not folder.is_large:
        folder.files()
    return folder


def show(folder: Folder, model_dir: Path | None) -> None:
    """Tell on stderr what will be sent, and what of the folder will not."""
    sent = sorted(((size, name) for name, size in folder.sizes.items()), reverse=True)
    names = [f"{name} ({render.size(size)})" if size > _LARGE else name for size, name in sent]
    volume = render.size(sum(size for size, _ in sent))
    render.note(f"Sending the configuration and {len(sent)} file(s), {volume}{_listed(names)}")
    left_out = left_out_of(model_dir, {name for name, _ in folder.entries}) if model_dir is not None else []
    if left_out:
        render.note(f"Left out by {IGNORE_FILE} or as never needed{_listed(left_out)}")


def left_out_of(model_dir: Path, sent: Collection[str]) -> list[str]:
    """What of a folder was not sent: files, and folders with a slash, without what is in them."""
    found: list[str] = []

    def walk(folder: Path, prefix: str) -> None:
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            name = prefix + entry.name
            if name in sent:
                if entry.is_dir():
                    walk(folder / entry.name, f"{name}/")
            elif entry.name != IGNORE_FILE:
                found.append(f"{name}/" if entry.is_dir() else name)

    walk(model_dir, "")
    return found


def code_of(folder: Folder, field: str) -> dict[str, Any]:
    """The fields of a request that say its files, small ones as `field`. A large folder is uploaded.

    Raises:
        InvalidContextException: A file can't be read or changes meanwhile, or all are larger than the cluster takes.
    """
    from determined.common.experimental._contexts import code_of

    if not folder.is_large:
        return {field: folder.files()}
    meters = {"hashing": Meter(), "sending": Meter()}
    with progress("hashing and sending the folder", lambda: meters["sending"].at() or meters["hashing"].at()):
        return code_of(session.get(), folder, field, lambda what, done, total: meters[what](done, total))


def send(
    config: str,
    folder: Folder,
    *,
    project_id: int | None = None,
    template: str | None = None,
    activate: bool = True,
    validate_only: bool = False,
) -> dict[str, Any]:
    """Create an experiment; the cluster's answer. Prints the cluster's warnings to stderr.

    However often it has to be sent, it is created once: each try has the same key.

    Raises:
        InvalidRequestException: The cluster refuses the configuration.
        MasterNotFoundException: There was no answer.
    """
    body = _each([config], project_id, template, activate=activate)[0] | code_of(folder, "modelDefinition")
    body |= {"validateOnly": True} if validate_only else {}
    return _sent("/api/v1/experiments", body, validate_only=validate_only)


def send_many(
    configs: Sequence[str],
    folder: Folder,
    *,
    project_id: int | None = None,
    template: str | None = None,
    activate: bool = True,
) -> list[dict[str, Any]]:
    """Create experiments with the same files, all or none: see `send`. What the cluster says of each of them."""
    each = _each(configs, project_id, template, activate=activate)
    body = {"experiments": each} | code_of(folder, "modelDefinition")
    return _sent("/api/v1/undeterred/experiments", body)["experiments"]


def _each(
    configs: Sequence[str], project_id: int | None, template: str | None, *, activate: bool
) -> list[dict[str, Any]]:
    """What a request says of each experiment, without its files."""
    same: dict[str, Any] = {"activate": activate}
    same |= {"projectId": project_id} if project_id is not None else {}
    same |= {"template": template} if template is not None else {}
    return [{"config": config, **same} for config in configs]


def _sent(path: str, body: Mapping[str, Any], *, validate_only: bool = False) -> dict[str, Any]:
    from determined.common.experimental._wire import new_key, warnings_of

    try:
        with progress("checking" if validate_only else "sending"):
            answer = session.get().post(path, body, idempotency_key=new_key(), timeout_s=_CREATE_TIMEOUT_S)
    except errors.MasterNotFoundException as error:
        if error.maybe_applied and not validate_only:
            error.message += "; it may have been created: look with `det experiment list` before you try again"
        raise
    created: dict[str, Any] = answer.json()
    for each in created.get("experiments") or [created]:
        for warning in warnings_of(each):
            render.note(f"warning: {warning}")
    return created


def _listed(names: Sequence[str]) -> str:
    more = f", … {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f": {', '.join(names[:_MOST_NAMED])}{more}" if names else ""


def _put(config: Any, path: Sequence[str], value: Any) -> None:
    at = config
    for step in path[:-1]:
        if at.get(step) is None:
            at[step] = {}
        at = at[step]
        if not hasattr(at, "get"):
            raise TypeError(f"{step} is {at!r}, which has no part {path[-1]!r}")
    at[path[-1]] = value


def _shorten(config: Any) -> None:
    """One trial of one step, which may fail once: enough to see that the code runs."""
    searcher: Mapping[str, Any] = config.get("searcher") or {}
    kept = {key: searcher[key] for key in ("metric", "smaller_is_better") if key in searcher}
    length: Any = searcher.get("max_length")
    unit = str(next(iter(length))) if hasattr(length, "keys") and length else "batches"
    config["searcher"] = {"name": "random", "max_trials": 1, **kept}
    if length is not None:
        config["searcher"]["max_length"] = {unit: 1}
    config["max_restarts"] = 0
    config["name"] = f"[test-mode] {config.get('name') or ''}".strip()
