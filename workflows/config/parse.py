"""From what a user wrote to a config that everything else can rely on."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any, cast

from pydantic import ValidationError

from workflows.config.base import JsonMap
from workflows.config.check import Finding, check_merged, check_written, is_integer, json_type
from workflows.config.defaults import ClusterDefaults, field_defaults
from workflows.config.errors import ConfigError, Path, Problem, Stage, render_path
from workflows.config.experiment import ExperimentConfig
from workflows.config.merge import merge_configs
from workflows.config.rules import check_rules
from workflows.config.shims import normalize
from workflows.config.yamltext import Document, parse_text, plain_data


def parse_experiment_config(
    text_or_map: str | Mapping[str, Any] | Document,
    *,
    template: Mapping[str, Any] | None = None,
    policy: Mapping[str, Any] | None = None,
    cluster: ClusterDefaults | None = None,
    seed: int,
    managed: bool = True,
) -> ExperimentConfig:
    """Parse, migrate, merge with defaults and validate an experiment config.

    Args:
        text_or_map: YAML or JSON text, the same as :func:`parse_text` read it, or as data. Only text gives problems
            a line.
        template: What fills the config up before the defaults do; it was checked (:func:`check_written`).
        policy: What an administrator sets for all configurations, over what users say; checked, too.
        cluster: What pool, workspace and cluster add.
        seed: Seed of the experiment if the config has none, and of its name; usually the time.
        managed: Whether the platform runs the trials; if so, an entrypoint is needed.

    Returns:
        The config with every default filled in.

    Raises:
        ConfigError: The config cannot be used; all problems at once.
    """
    document, config = _read(text_or_map)
    findings = _check_read(document, config)
    # Merging tells what is missing even while something else is wrong, so both are reported in one go.
    filled = merge_configs(config, dict(template)) if template else config
    filled = merge_configs(dict(policy), filled) if policy else filled
    merged = _merge_defaults(filled, cluster, seed)
    complete = check_merged(merged)
    if findings:
        missing = [f for f in complete if f.message.endswith("is a required property")]
        rules = check_rules(normalize(merged), managed=managed, known_bad=[f.path for f in findings])
        raise _error([*findings, *missing, *rules], document, Stage.SANE)
    if complete:
        only_missing = all(f.message.endswith("is a required property") for f in complete)
        raise _error(
            [*complete, *check_rules(merged, managed=managed, known_bad=[f.path for f in complete])],
            document,
            Stage.COMPLETE if only_missing else Stage.SANE,
        )
    broken = check_rules(merged, managed=managed, known_bad=[])
    if broken:
        raise _error(broken, document, Stage.SANE)
    try:
        return ExperimentConfig.model_validate(merged)
    except ValidationError as error:  # the schema is looser than the models somewhere: still a clear answer
        leftovers = [Finding(tuple(e["loc"]), e["msg"], e.get("input")) for e in error.errors(include_url=False)]
        raise _error(leftovers, document, Stage.SANE) from error


def apply_overrides(config: Mapping[str, Any], overrides: Iterable[str]) -> JsonMap:
    """Set values as the CLI's ``--config a.b=c`` does; the value is YAML, so ``x=[1, 2]`` is a list.

    Args:
        config: The config; it is not changed.
        overrides: ``path=value`` each; the parts of the path are separated by dots, list items named by position.

    Returns:
        A changed copy.

    Raises:
        ConfigError: An override has no ``=``, its value is not YAML, or its path leads through text or a number.
    """
    result: JsonMap = deepcopy(dict(config))
    problems: list[Problem] = []
    for override in overrides:
        key, found, text = override.partition("=")
        parts = key.strip().split(".")
        if not found or not all(parts):
            problems.append(Problem("<config>", f"override {override!r} is not of the form path.to.key=value"))
            continue
        try:
            value = parse_text(text, strict=True).value
        except ConfigError as error:
            problems.extend(Problem(f"<config>.{key}", p.message, value=text, hint=p.hint) for p in error.problems)
            continue
        message = _set(result, parts, value)
        if message is not None:
            problems.append(Problem(f"<config>.{key}", message, value=value))
    if problems:
        raise ConfigError(problems)
    return result


def _set(config: JsonMap, parts: list[str], value: Any) -> str | None:
    node: Any = config
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if isinstance(node, list):
            items = cast(list[Any], node)
            if not part.isascii() or not part.isdigit() or int(part) >= len(items):
                return f"{'.'.join(parts[:index])} is a list of {len(items)}: {part!r} is not a position in it"
            if last:
                items[int(part)] = value
            else:
                node = items[int(part)]
        elif isinstance(node, dict):
            fields = cast(JsonMap, node)
            if last:
                fields[part] = value
            else:
                if fields.get(part) is None:
                    fields[part] = {}
                node = fields[part]
        else:
            return f"{'.'.join(parts[:index])} is a {json_type(node)}, so it cannot hold {part!r}"
    return None


def read_config(text: str) -> Document:
    """Parse YAML or JSON, and take `2024_01` for the text that it is where a text is expected. Raises: ConfigError."""
    document = parse_text(text)
    value: Any = document.value
    if document.loose and isinstance(value, dict):
        _check_read(document, cast(JsonMap, value))
    return document


def loose_numbers(document: Document) -> list[str]:
    """A sentence for each value that is a number only to older readers of YAML."""
    told: list[str] = []
    for path, text in document.loose.items():
        value: Any = document.value
        for step in path:
            value = value[step]
        told.append(f"{render_path(path)}: {text} is read as the number {value}, as by older readers; quote a text")
    return told


def _check_read(document: Document, config: JsonMap) -> list[Finding]:
    """What is wrong with a config as written."""
    findings = check_written(config)
    texts = {finding.path: document.loose[finding.path] for finding in findings if finding.path in document.loose}
    for path, text in texts.items():
        node: Any = config
        for step in path[:-1]:
            node = node[step]
        node[path[-1]] = text
        del document.loose[path]
    return check_written(config) if texts else findings


def _read(text_or_map: str | Mapping[str, Any] | Document) -> tuple[Document, JsonMap]:
    if isinstance(text_or_map, Document):
        document = text_or_map
    elif isinstance(text_or_map, str):
        document = parse_text(text_or_map)
    else:
        document = Document(plain_data(text_or_map))
    config: Any = {} if document.value is None else document.value
    if not isinstance(config, dict):
        message = f"expected object, but got {json_type(config)}"
        raise _error([Finding((), message, config)], document, Stage.SANE)
    fields = cast(JsonMap, config)
    version = fields.get("version")
    if version is not None and not (is_integer(version) and version == 0):
        raise _error([Finding((), f"invalid version: {version}", version, key="version")], document, Stage.VERSION)
    return document, fields


def _merge_defaults(config: JsonMap, cluster: ClusterDefaults | None, seed: int) -> JsonMap:
    lower = field_defaults(seed)
    if cluster is not None:
        resources = config.get("resources")
        slots: Any = cast(JsonMap, resources).get("slots_per_trial") if isinstance(resources, dict) else None
        has_slots = not (is_integer(slots) and slots == 0)
        lower = merge_configs(cluster.as_config(1 if has_slots else 0), lower)
    merged = merge_configs(config, lower)
    # Sent as empty text, the pool is as good as absent.
    pool = lower.get("resources", {}).get("resource_pool")
    resources = merged.get("resources")
    if isinstance(resources, dict) and pool and not cast(JsonMap, resources).get("resource_pool"):
        merged["resources"] = {**cast(JsonMap, resources), "resource_pool": pool}
    return merged


def _error(findings: list[Finding], document: Document, stage: Stage) -> ConfigError:
    return ConfigError([_problem(finding, document) for finding in findings], stage)


def _problem(finding: Finding, document: Document) -> Problem:
    line, column = _position(finding, document)
    return Problem(render_path(finding.path), finding.message, line, column, finding.value, finding.hint)


def _position(finding: Finding, document: Document) -> tuple[int | None, int | None]:
    """The place of the key at fault, or of the nearest thing around it that was written."""
    path: Path = finding.path if finding.key is None else (*finding.path, finding.key)
    while path:
        if path in document.positions:
            return document.positions[path]
        path = path[:-1]
    return None, None
