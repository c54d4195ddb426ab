"""Rules that concern more than one value: what types and bounds cannot say.

Every rule looks at the merged config in its current form and skips what the schema has already refused, so that a
config's first answer is its whole answer. Source: spec experiment-config.md §2-§13, searchers.md §4.
"""

import math
import posixpath
from collections.abc import Iterator
from typing import Any, cast

from pydantic import TypeAdapter

from workflows.config.base import INT64_MAX, JsonMap
from workflows.config.budget import WALL_TIME_MESSAGE, is_wall_time
from workflows.config.check import Finding, is_integer
from workflows.config.errors import Path
from workflows.config.failures import MOST_FACTORS, MOST_POLICIES, SILENCE_MESSAGE, is_silence
from workflows.config.gates import MOST_GATES, MOST_NAMES
from workflows.config.hyperparameters import LEAF_TYPES, Hyperparameters, grid_size
from workflows.config.patterns import PatternRefused, PatternSet
from workflows.config.policies import BUILTIN_LOG_POLICIES

MAX_GRID_POINTS = 100_000
MAX_INITIAL_TRIALS = 100_000
_RE2_HINT = "it has no look-around and no back references"
_KNOWN_PATTERNS = {policy.pattern for policy in BUILTIN_LOG_POLICIES}
_POD_KEYS_OF_OURS = (
    "image",
    "command",
    "args",
    "workingDir",
    "ports",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "imagePullPolicy",
    "securityContext",
)


def check_rules(config: JsonMap, *, managed: bool, known_bad: list[Path]) -> list[Finding]:
    """Findings of all rules, without those about places that are known to be wrong already.

    Args:
        config: The merged config after :func:`workflows.config.shims.normalize`.
        managed: Whether the platform runs the trials.
        known_bad: Places with a finding of the schema; nothing is said about them or what they contain.
    """
    findings = [
        *_top_level(config, managed),
        *_searcher(config),
        *_hyperparameters(config, known_bad),
        *container_rules(config),
        *storage_findings(_map(config.get("checkpoint_storage"))),
        *_log_policies(config.get("log_policies")),
        *_profiling(_map(config.get("profiling"))),
        *_budget(config.get("budget")),
        *_gates(config),
        *_failure_policies(config),
    ]
    return [f for f in findings if not any(f.path[: len(bad)] == bad for bad in known_bad if bad)]


def container_rules(config: JsonMap) -> Iterator[Finding]:
    """Findings about what a container runs on and in, which configurations of all kinds of tasks have."""
    yield from _resources(_map(config.get("resources")))
    yield from _mounts(config.get("bind_mounts"))
    yield from _environment(_map(config.get("environment")))


def _map(value: Any) -> JsonMap:
    return cast(JsonMap, value) if isinstance(value, dict) else {}


def _items(value: Any) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _top_level(config: JsonMap, managed: bool) -> Iterator[Finding]:
    if bool(config.get("workspace")) != bool(config.get("project")):
        message = "workspace and project must both be included in config if one is provided"
        yield Finding((), message, None, key="workspace" if config.get("workspace") else "project")
    entrypoint = config.get("entrypoint")
    if entrypoint in ("", []):
        yield Finding(("entrypoint",), "must not be empty", entrypoint)
    elif entrypoint is None and managed:
        yield Finding((), "managed experiments require entrypoint")


def _searcher(config: JsonMap) -> Iterator[Finding]:
    searcher = _map(config.get("searcher"))
    name = searcher.get("name")
    if name in ("async_halving", "adaptive_asha"):
        has_time, has_metric = "max_time" in searcher, bool(searcher.get("time_metric"))
        if has_time != has_metric or not (has_time or "max_length" in searcher):
            message = f"the `{name}` searcher requires `max_time` and `time_metric` to be set"
            hint = None if has_time != has_metric else "max_length is understood as well, for older code"
            yield Finding(("searcher",), message, None, hint)
    trials, at_once = searcher.get("max_trials"), searcher.get("max_concurrent_trials", 16)
    if is_integer(trials) and is_integer(at_once):
        started = min(cast(int, trials), cast(int, at_once) or cast(int, trials))
        if started > MAX_INITIAL_TRIALS:
            yield Finding(("searcher", "max_concurrent_trials"), _too_many(started), at_once)
    if name == "pbt":
        yield from _pbt(searcher)
    elif name == "optuna":
        yield from _optuna(searcher, config)


def _too_many(started: int) -> str:
    return f"{started} trials would start at once, at most {MAX_INITIAL_TRIALS} can"


def _pbt(searcher: JsonMap) -> Iterator[Finding]:
    members, rounds, length = (searcher.get(key) for key in ("population_size", "num_rounds", "length_per_round"))
    if is_integer(members) and cast(int, members) > MAX_INITIAL_TRIALS:
        yield Finding(("searcher", "population_size"), _too_many(cast(int, members)), members)
    units: Any = next(iter(cast(JsonMap, length).values()), None) if isinstance(length, dict) else length
    if not is_integer(units):
        return
    if length == 0:  # a plain number may be 0 where it says how long a trial trains, but not here
        yield Finding(("searcher", "length_per_round"), "must be >= 1 but found 0", length)
    elif is_integer(rounds) and cast(int, units) * cast(int, rounds) > INT64_MAX:
        message = f"times num_rounds is {int(units) * cast(int, rounds)}, at most {INT64_MAX} can be trained"
        yield Finding(("searcher", "length_per_round"), message, length)


def _optuna(searcher: JsonMap, config: JsonMap) -> Iterator[Finding]:
    if "seed" in _map(searcher.get("sampler_options")):
        message = "the sampler's seed comes from the experiment's"
        yield Finding(("searcher", "sampler_options"), message, None, "set reproducibility.experiment_seed", "seed")
    space = config.get("hyperparameters", {})
    if isinstance(space, dict) and not _has_choice(cast(JsonMap, space)):
        message = "the optuna searcher needs at least one hyperparameter that is not a constant"
        yield Finding(("hyperparameters",), message, cast(JsonMap, space))


def _has_choice(space: JsonMap) -> bool:
    nested = (cast(JsonMap, item) for item in space.values() if isinstance(item, dict))
    # an unknown type is reported elsewhere
    return any(item["type"] != "const" if "type" in item else _has_choice(item) for item in nested)


def _hyperparameters(config: JsonMap, known_bad: list[Path]) -> Iterator[Finding]:
    space = config.get("hyperparameters", {})
    if not isinstance(space, dict):
        return
    fields = cast(JsonMap, space)
    is_grid = _map(config.get("searcher")).get("name") == "grid"
    before = list(_space(fields, ("hyperparameters",), is_grid))
    yield from before
    broken = bool(before) or any(bad[:1] == ("hyperparameters",) for bad in known_bad)
    if not is_grid or broken:
        return
    points = grid_size(TypeAdapter(Hyperparameters).validate_python(fields))
    if points == 0:
        yield Finding(("hyperparameters",), "a grid search needs at least one hyperparameter", fields)
    elif points > MAX_GRID_POINTS:
        message = f"the grid has {points} points, at most {MAX_GRID_POINTS} are allowed"
        yield Finding(("hyperparameters",), message, points, "lower a count, or use searcher random")


def _space(value: Any, path: Path, is_grid: bool) -> Iterator[Finding]:
    """Findings about a hyperparameter and all that it holds."""
    if isinstance(value, list):
        for index, item in enumerate(cast(list[Any], value)):
            if isinstance(item, dict | list):
                yield from _space(item, (*path, index), is_grid)
        return
    fields = _map(value)
    kind = fields.get("type")
    if "type" not in fields:
        for name, item in fields.items():
            if isinstance(item, dict | list):
                yield from _space(item, (*path, name), is_grid)
    elif kind == "const":
        # An implicit list is spelled as a constant by now; a range inside it is as wrong as outside.
        if isinstance(fields.get("val"), list):
            yield from _space(fields["val"], path, is_grid)
    elif isinstance(kind, str) and kind in LEAF_TYPES and kind != "categorical":
        yield from _range(fields, path)
        if is_grid and fields.get("count") is None:
            yield Finding(path, "grid search is in use but count was not provided", None)


def _range(fields: JsonMap, path: Path) -> Iterator[Finding]:
    low, high = fields.get("minval"), fields.get("maxval")
    if not _is_number(low) or not _is_number(high):
        return
    low, high = cast(float, low), cast(float, high)
    if low >= high:
        yield Finding(path, "minval must be less than maxval", low)
        return
    if not math.isfinite(float(high) - float(low)):
        yield Finding(path, "the range from minval to maxval is too wide for a floating-point number", high)
    base = fields.get("base")
    if fields.get("type") == "log" and _is_number(base) and cast(float, base) > 0:
        try:
            math.pow(cast(float, base), low)
            math.pow(cast(float, base), high)
        except OverflowError:
            message = "base to the power of minval or maxval is too large for a floating-point number"
            yield Finding(path, message, high, "minval and maxval are exponents, not values")


def _resources(resources: JsonMap) -> Iterator[Finding]:
    slots, most = resources.get("slots_per_trial", 1), resources.get("max_slots")
    if is_integer(slots) and is_integer(most) and cast(int, slots) > cast(int, most):
        message = f"must not be more than max_slots, which is {most}"
        yield Finding(("resources", "slots_per_trial"), message, slots)
    for index, device in enumerate(_items(resources.get("devices"))):
        path: Path = ("resources", "devices", index)
        if isinstance(device, str):
            yield Finding(path, "must be of the form /host:/container or /host:/container:rwm", device)
        else:
            mode = _map(device).get("mode", "mrw")
            if isinstance(mode, str) and (not mode or set(mode) - set("rwm")):
                yield Finding((*path, "mode"), "must consist of the letters r, w and m", mode)


def _mounts(mounts: Any) -> Iterator[Finding]:
    for index, mount in enumerate(_items(mounts)):
        host, inside = _map(mount).get("host_path"), _map(mount).get("container_path")
        if isinstance(host, str) and not host.startswith("/"):
            yield Finding(("bind_mounts", index, "host_path"), "host_path must be an absolute path", host)
        if isinstance(inside, str) and inside in (".", ""):
            yield Finding(("bind_mounts", index, "container_path"), 'container_path must not be "."', inside)


def _environment(environment: JsonMap) -> Iterator[Finding]:
    for kind, variables in _map(environment.get("environment_variables")).items():
        for index, variable in enumerate(_items(variables)):
            if isinstance(variable, str) and (not variable or variable.startswith("=") or "\0" in variable):
                path: Path = ("environment", "environment_variables", kind, index)
                yield Finding(path, "must be of the form NAME=VALUE or NAME", variable)
    pod = _map(environment.get("pod_spec"))
    for key in ("name", "namespace", "name_space"):
        for holder, path in ((pod, ()), (_map(pod.get("metadata")), ("metadata",))):
            if key in holder:
                yield Finding(("environment", "pod_spec", *path, key), f"{key} is not configurable", holder[key])
    for index, container in enumerate(_items(_map(pod.get("spec")).get("containers"))):
        fields = _map(container)
        if fields.get("name") != "determined-container":
            continue
        for key in fields:
            if _camel(key) in _POD_KEYS_OF_OURS:
                path = ("environment", "pod_spec", "spec", "containers", index, key)
                yield Finding(path, f"{key} is not configurable", fields[key])


def _camel(key: str) -> str:
    head, *rest = key.split("_")
    return head + "".join(part.capitalize() for part in rest)


def storage_findings(storage: JsonMap) -> Iterator[Finding]:
    """What is wrong with a `checkpoint_storage` section whose fields are of the right types."""
    kind = storage.get("type")
    if name := {"shared_fs": "host_path", "directory": "container_path"}.get(str(kind)):
        folder = storage.get(name)
        if isinstance(folder, str) and folder and not folder.startswith("/"):
            yield Finding(("checkpoint_storage", name), f"{name} must be an absolute path", folder)
    if kind == "shared_fs":
        host, below = storage.get("host_path"), storage.get("storage_path")
        if isinstance(host, str) and isinstance(below, str) and not _is_inside(host, below):
            message = "storage_path must either be a relative directory or a subdirectory of host_path"
            yield Finding(("checkpoint_storage", "storage_path"), message, below)
    elif kind in ("s3", "gcs"):
        prefix = storage.get("prefix")
        if isinstance(prefix, str) and ".." in prefix.split("/"):
            yield Finding(("checkpoint_storage", "prefix"), "prefix cannot contain /../", prefix)
    elif kind == "azure":
        has_string, has_url = bool(storage.get("connection_string")), bool(storage.get("account_url"))
        if has_string == has_url:
            message = "Exactly one of connection_string or account_url must be set"
            yield Finding(("checkpoint_storage",), message, None)
        if has_string and storage.get("credential"):
            message = "credential and connection_string must not both be set"
            yield Finding(("checkpoint_storage",), message, None, key="credential")


def _is_inside(host: str, below: str) -> bool:
    top = posixpath.normpath(host)
    full = posixpath.normpath(posixpath.join(top, below))
    return full == top or full.startswith(top.rstrip("/") + "/")


def _log_policies(policies: Any) -> Iterator[Finding]:
    seen: list[str] = []
    patterns: dict[int, str] = {}
    for index, policy in enumerate(_items(policies)):
        path: Path = ("log_policies", index)
        fields = _map(policy)
        name, pattern, action = fields.get("name"), fields.get("pattern"), fields.get("action")
        if not name and not (pattern and action):
            message = (
                '"name" must be set, and "pattern" is also required unless you intend to disable an existing policy'
            )
            yield Finding(path, message, policy)
        elif name and action and not pattern:
            yield Finding(path, '"pattern" is required where "action" is set', policy)
        if isinstance(name, str) and name:
            if name in seen:
                yield Finding(("log_policies",), f'log_policies have duplicated names "{name}"', name)
            seen.append(name)
        if isinstance(pattern, str):
            patterns[index] = pattern
    if not set(patterns.values()) <= _KNOWN_PATTERNS:  # most configs have no others, and need not load the engine
        yield from _patterns(patterns)


def _patterns(patterns: dict[int, str]) -> Iterator[Finding]:
    """What RE2 says to the patterns, by their place among the policies; then to all of them together."""
    refused = False
    for index, pattern in patterns.items():
        try:
            PatternSet([pattern])
        except PatternRefused as error:
            refused = True
            message = f"{pattern[:80]!r} is not a regular expression of RE2: {error}"
            yield Finding(("log_policies", index, "pattern"), message, pattern, _RE2_HINT)
    if not refused:
        try:
            PatternSet(list(patterns.values()))
        except PatternRefused as error:
            yield Finding(("log_policies",), f"all patterns together: {error}", None)


def _profiling(profiling: JsonMap) -> Iterator[Finding]:
    begin, end = profiling.get("begin_on_batch", 0), profiling.get("end_after_batch")
    if is_integer(begin) and is_integer(end) and cast(int, begin) > cast(int, end):
        yield Finding(("profiling",), "begin_on_batch must be less than end_after_batch", begin, key="begin_on_batch")


def _budget(budget: Any) -> Iterator[Finding]:
    if not isinstance(budget, dict):
        return
    limits = cast(JsonMap, budget)
    if all(limits.get(name) is None for name in ("slot_hours", "price", "wall_time", "trials")):
        yield Finding(("budget",), "must limit one or more of slot_hours, price, wall_time and trials", limits)
    wall_time = limits.get("wall_time")
    if isinstance(wall_time, str) and not is_wall_time(wall_time):
        yield Finding(("budget", "wall_time"), WALL_TIME_MESSAGE, wall_time)


def _gates(config: JsonMap) -> Iterator[Finding]:
    gates = _items(config.get("approve_before"))
    if len(gates) > MOST_GATES:
        yield Finding(("approve_before",), f"must have at most {MOST_GATES} entries, but has {len(gates)}", gates)
        return
    seen: set[tuple[Any, Any]] = set()
    for place, gate in enumerate(map(_map, gates)):
        path = ("approve_before", place)
        what, rung, deadline = (gate.get(name) for name in ("what", "rung", "deadline"))
        if what == "promotion" and rung is None:
            yield Finding(path, "a promotion needs the rung that it leads to, from 1", gate)
        elif what != "promotion" and rung is not None:
            yield Finding((*path, "rung"), "only a promotion has a rung", rung)
        if what == "budget_overrun" and not config.get("budget"):
            yield Finding((*path, "what"), "budget_overrun needs a budget", what)
        if (what, rung) in seen:
            yield Finding(path, "it is in the list already", gate)
        seen.add((what, rung))
        if isinstance(deadline, str) and not is_wall_time(deadline):
            yield Finding((*path, "deadline"), WALL_TIME_MESSAGE, deadline)
        for name in ("users", "webhooks"):
            if len(_items(gate.get(name))) > MOST_NAMES:
                yield Finding((*path, name), f"must have at most {MOST_NAMES} entries", gate)


def _failure_policies(config: JsonMap) -> Iterator[Finding]:
    policies = _items(config.get("failure_policies"))
    if len(policies) > MOST_POLICIES:
        yield Finding(
            ("failure_policies",), f"must have at most {MOST_POLICIES} entries, but has {len(policies)}", policies
        )
        return
    for place, policy in enumerate(map(_map, policies)):
        yield from _next_try(("failure_policies", place), policy, _map(config.get("resources")).get("max_slots"))
        path, factors = ("failure_policies", place, "multiply"), _map(policy.get("multiply"))
        is_needed = policy.get("failure") in ("out_of_memory", "crash") and policy.get("resources") is None
        if len(factors) > MOST_FACTORS or (is_needed and not factors):
            yield Finding(path, f"must name 1 to {MOST_FACTORS} hyperparameters", factors)
        for name, factor in factors.items():
            if not _is_number(factor):
                continue  # the schema says so
            if not 0.001 <= factor <= 1000:
                yield Finding((*path, name), "must be a factor of 0.001 to 1000", factor)
            elif not _is_numeric(config.get("hyperparameters"), name):
                yield Finding((*path, name), "must be the name of a hyperparameter that is a number", name)


def _next_try(path: Path, policy: JsonMap, most_slots: Any) -> Iterator[Finding]:
    silent_for, resources = policy.get("silent_for"), policy.get("resources")
    is_hang = policy.get("failure") == "hang"
    if is_hang and silent_for is None:
        yield Finding(
            path, "a hang needs silent_for: how long a trial may report and write nothing, such as 30m", policy
        )
    elif not is_hang and silent_for is not None:
        yield Finding((*path, "silent_for"), "only a hang has silent_for", silent_for)
    elif isinstance(silent_for, str) and not is_silence(silent_for):
        yield Finding((*path, "silent_for"), SILENCE_MESSAGE, silent_for)
    if isinstance(resources, dict) and not any(each is not None for each in _map(resources).values()):
        yield Finding((*path, "resources"), "must name resource_pool, slots_per_trial, or both", resources)
    slots = _map(resources).get("slots_per_trial")
    if is_integer(slots) and is_integer(most_slots) and slots > most_slots:
        message = f"must not be more than max_slots, which is {most_slots}"
        yield Finding((*path, "resources", "slots_per_trial"), message, slots)


def _is_numeric(space: Any, name: str) -> bool:
    """Whether a hyperparameter, `name` or `group.name`, has numbers as values."""
    for part in name.split("."):
        space = _map(space).get(part)
    found = _map(space)
    values: list[Any] = _items(found.get("vals")) if found.get("type") == "categorical" else [found.get("val", space)]
    is_range = found.get("type") in ("int", "double", "log")
    return is_range or (bool(values) and all(map(_is_number, values)))
