"""The configuration of processes: one file in YAML for all of them, under what the environment of each sets.

```yaml
database_url_file: /run/secrets/database-url   # of all processes
temporal_address: temporal.example.org:7233
api:
  host: 0.0.0.0
```

What all processes share is at the top, what one has is in the section of its name. A section's key goes over the top's,
and a variable `UNDETERRED_<KEY>` over both. A secret may be named by a file, `<key>_file`, in either place.

`python -m workers.configuration FILE` prints what is wrong with a file; `det master config check` runs it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast, get_args

from pydantic import BaseModel, SecretStr, ValidationError

from api.settings import ApiSettings, ClusterSettings, OutgoingSettings, values_in
from workers.settings import AgentSettings, GatewaySettings, OrchestratorSettings
from workflows.config.errors import ConfigError
from workflows.config.yamltext import parse_text, plain_data

SECTIONS: dict[str, type[BaseModel]] = {
    "api": ApiSettings,
    "orchestrator": OrchestratorSettings,
    "gateway": GatewaySettings,
    "agent": AgentSettings,
}
#: What may stand at the top: the same for all processes.
COMMON = {**ClusterSettings.model_fields, **OutgoingSettings.model_fields}
#: Names the file, unless the option `--config` does.
VARIABLE = "UNDETERRED_CONFIG"
_LONGEST = 1 << 20
_FILE = "_file"
_SHOWN = 200
#: What each process needs to be told, and a file may leave to its environment.
_REQUIRED = {
    "database_url": "sqlite://",
    "agent_token": "x",
    "agent_id": "x",
    "api_url": "http://x",
    "folder": "/x",
    "slots": "0",
}


class BadConfiguration(Exception):
    """Each line says what is wrong: the key, its value if that is no secret, and what was expected."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def settings_of(model: type[Any], path: str | None = None, environment: Mapping[str, str] | None = None) -> Any:
    """The settings of a process.

    Args:
        model: Of the process; one that has no section reads what all share.
        path: The file; None: as `UNDETERRED_CONFIG` says, or none.
        environment: In place of the process' own.

    Raises:
        BadConfiguration: It names what is wrong, in the file or in a variable.
    """
    variables = os.environ if environment is None else environment
    path = path or variables.get(VARIABLE) or None
    values = values_of(model, path, variables)
    try:
        return model.model_validate(values.found)
    except ValidationError as error:
        raise BadConfiguration(list(_told(error, values))) from None


class Values:
    """Values by the name of their setting, and where each is from."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self.where: dict[str, str] = {}

    def put(self, name: str, value: Any, where: str) -> None:
        """Set one, over what was there."""
        self.found[name], self.where[name] = value, where


def values_of(model: type[BaseModel], path: str | None, environment: Mapping[str, str]) -> Values:
    """What file and environment say, not validated as a whole. Raises: BadConfiguration."""
    values = Values()
    if path:
        document = _read(path)
        _take(
            {key: value for key, value in document.items() if key not in SECTIONS}, model, values, f"{path}: ".__add__
        )
        section = next((name for name, each in SECTIONS.items() if each is model), "")
        _take(document.get(section) or {}, model, values, f"{path}: {section}.".__add__)
    of_environment: dict[str, Any] = {}
    for name in (*model.model_fields, *(f"{name}{_FILE}" for name in secrets_of(model))):
        text = environment.get(_variable(name))
        if text is not None:
            try:
                of_environment |= values_in({_variable(name): text}, model) or {name: text}
            except ValidationError as error:
                raise BadConfiguration([f"{_variable(name)}: {each['msg']}" for each in error.errors()]) from None
    _take(of_environment, model, values, _variable)
    return values


def _variable(name: str) -> str:
    return f"UNDETERRED_{name.upper()}"


def _take(told: Mapping[str, Any], model: type[BaseModel], values: Values, place: Callable[[str], str]) -> None:
    """Take what one place says, secrets in files read."""
    secrets = secrets_of(model)
    for name, value in told.items():
        of_secret = name.removesuffix(_FILE)
        if name in model.model_fields:
            values.put(name, value, place(name))
        elif name.endswith(_FILE) and of_secret in secrets:
            if of_secret in told:
                raise BadConfiguration([f"{place(name)}: expected either this or {of_secret}"])
            values.put(of_secret, _secret(value, place(name)), place(name))


def _secret(path: Any, where: str) -> str:
    try:
        if not isinstance(path, str):
            raise ValueError("expected the path of a file")
        text = Path(path).read_text().strip()
        if not text or "\n" in text or len(text) > 10_000:
            raise ValueError("expected a file with one line")
    except OSError as error:
        raise BadConfiguration([f"{where}: {path!r}: expected a file that can be read: {error.strerror}"]) from None
    except ValueError as error:  # UnicodeDecodeError among them
        why = "expected a file with text" if isinstance(error, UnicodeDecodeError) else str(error)
        raise BadConfiguration([f"{where}: {path!r}: {why}"]) from None
    return text


def secrets_of(model: type[BaseModel]) -> set[str]:
    """The settings of a model that may be in a file: those that hide their value, and the database's address."""
    found = {
        name
        for name, info in model.model_fields.items()
        if info.annotation is SecretStr or SecretStr in get_args(info.annotation) or name == "database_url"
    }
    return {name for name in found if f"{name}{_FILE}" not in model.model_fields}


# -- the file ----------------------------------------------------------------------------------------------------------


def _read(path: str) -> dict[str, Any]:
    """The file, with known keys only. Raises: BadConfiguration."""
    try:
        with Path(path).open() as file:
            text = file.read(_LONGEST + 1)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise BadConfiguration([f"{path}: expected a file in YAML that can be read: {why}"]) from None
    if len(text) > _LONGEST:
        raise BadConfiguration([f"{path}: expected at most {_LONGEST} characters"])
    try:
        parsed: Any = plain_data(parse_text(text, strict=True).value) if text.strip() else {}
    except ConfigError as error:
        raise BadConfiguration([f"{path}: {str(each).removeprefix('<config>: ')}" for each in error.problems]) from None
    if not isinstance(parsed, dict):
        raise BadConfiguration([f"{path}: expected keys and values"])
    document = cast("dict[str, Any]", parsed)
    problems = list(_unknown(document, path))
    if problems:
        raise BadConfiguration(problems)
    return document


def _shared() -> set[str]:
    return {*COMMON, *(f"{name}{_FILE}" for name in secrets_of(ClusterSettings))}


def _unknown(document: Mapping[str, Any], path: str) -> Iterator[str]:
    shared = _shared()
    for name, value in document.items():
        if name in SECTIONS:
            if value is not None and not isinstance(value, dict):
                yield f"{path}: {name}: {value!r}: expected keys and values"
                continue
            model = SECTIONS[name]
            known = {*model.model_fields, *(f"{each}{_FILE}" for each in secrets_of(model))}
            told = cast("dict[str, Any]", value or {})
            yield from (f"{path}: {name}.{key}: there is no such setting" for key in told if key not in known)
        elif name not in shared:
            owners = [section for section, model in SECTIONS.items() if name in model.model_fields]
            hint = f": it is one of the section {' or '.join(owners)}" if owners else ""
            yield f"{path}: {name}: there is no such setting of all processes{hint}"


def problems_in(path: str) -> list[str]:
    """What is wrong with a file, for each process that it has a section of, whatever the environment says."""
    try:
        document = _read(path)
    except BadConfiguration as error:
        return error.problems
    models = [model for name, model in SECTIONS.items() if document.get(name) is not None] or [ClusterSettings]
    found: list[str] = []
    for model in models:
        # what the file leaves to the environment is not its mistake
        left = {_variable(name): text for name, text in _REQUIRED.items() if name in model.model_fields}
        try:
            there = values_of(model, path, {}).found
            settings_of(model, path, {name: text for name, text in left.items() if name[11:].lower() not in there})
        except BadConfiguration as error:
            found += [problem for problem in error.problems if problem not in found]
    return found


def _told(error: ValidationError, values: Values) -> Iterator[str]:
    for problem in error.errors(include_url=False):
        name = str(problem["loc"][0]) if problem["loc"] else ""
        what = problem["msg"].removeprefix("Value error, ")
        if not name:  # of several settings: it says which
            yield what
            continue
        where = ".".join([values.where.get(name, _variable(name)), *map(str, problem["loc"][1:])])
        value: Any = problem["input"]
        is_shown = (
            problem["type"] != "missing" and type(value) in (str, int, float, list, bool) and not _is_secret(name)
        )
        shown = f"{repr(value)[:_SHOWN]}: " if is_shown and str(value)[:20] not in what else ""
        yield f"{where}: {shown}{what}"


def _is_secret(name: str) -> bool:
    return any(name in secrets_of(model) or name == "temporal_api_key" for model in SECTIONS.values())


# -- its schema --------------------------------------------------------------------------------------------------------


def schema() -> dict[str, Any]:
    """JSON Schema of the file, for editors."""
    definitions: dict[str, Any] = {}
    sections = {name: _section(model, definitions) for name, model in SECTIONS.items()}
    top = {name: value for name, value in sections["api"]["properties"].items() if name in _shared()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Configuration of Undeterred's processes",
        "type": "object",
        "additionalProperties": False,
        "properties": top | sections,
        "$defs": definitions,
    }


def _section(model: type[BaseModel], definitions: dict[str, Any]) -> dict[str, Any]:
    """A process' settings: none is required here, as the environment may set it."""
    found = model.model_json_schema()
    definitions |= found.pop("$defs", {})
    properties: dict[str, Any] = found["properties"]
    for name in sorted(secrets_of(model)):
        properties[f"{name}{_FILE}"] = {"type": "string", "description": f"file with the value of {name} in one line"}
    return {"type": ["object", "null"], "description": found.get("description", ""), "additionalProperties": False,
            "properties": properties}  # fmt: skip


def main() -> int:
    """Check a file; returns the exit code."""
    parser = argparse.ArgumentParser(prog="det master config check", description="Check a configuration file.")
    parser.add_argument("file")
    file: str = parser.parse_args().file
    problems = problems_in(file)
    for problem in problems:
        sys.stderr.write(problem + "\n")
    if not problems:
        sys.stdout.write(f"{file}: nothing is wrong\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
