"""States of an allocation: how far one run of a task on resources has come, and what its end means.

Source: spec scheduling.md §7-§8 and spec/README.md points 15-16.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

from pydantic import BaseModel, ConfigDict


class AllocationState(StrEnum):
    """In the order of progress. PENDING is a request in its pool's queue, which has no record yet."""

    PENDING = "PENDING"
    ASSIGNED = "ASSIGNED"
    PULLING = "PULLING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    TERMINATED = "TERMINATED"


_ORDER = list(AllocationState)

#: What is recorded only moves forward, over any number of states: a late word of an earlier one changes nothing.
TRANSITIONS: dict[AllocationState, frozenset[AllocationState]] = {
    state: frozenset(_ORDER[place + 1 :]) for place, state in enumerate(_ORDER)
}


def before(state: AllocationState) -> list[str]:
    """The states that `state` may follow, as they are stored."""
    return [earlier.value for earlier, targets in TRANSITIONS.items() if state in targets]


class ExitKind(StrEnum):
    """What the end of an allocation means."""

    CLEAN = "clean"  # asked for by us, or never started
    FINISHED = "finished"  # the user's code ended by itself with 0
    FAILED = "failed"  # the user's code failed
    SYSTEM = "system"  # our fault or a host's: costs the user nothing
    FATAL = "fatal"  # trying again is pointless


class EndCause(StrEnum):
    """The typed cause that is recorded with the end of an allocation and of a trial."""

    KILLED = "killed"  # on a user's or the search's wish
    UNRESPONSIVE = "unresponsive"  # killed, because it was asked to leave and did not
    PREEMPTED = "preempted"
    OUT_OF_OPERATIONS = "out_of_operations"
    EXIT_ZERO = "exit_zero"
    NOTHING_REPORTED = "nothing_reported"  # exit code 0, without a single report in its life
    USER_CODE = "user_code"
    IMPORT = "import"  # the user's code could not be imported
    ENTRYPOINT = "entrypoint"  # the entrypoint's command was not found, or could not be executed
    CRASH = "crash"  # a signal that a process brings upon itself, such as a segmentation fault
    TERMINATED = "terminated"  # a signal that asks to end, sent by neither a user nor us
    SIGNAL = "signal"  # any other signal
    OUT_OF_MEMORY = "out_of_memory"
    HANG = "hang"  # it reported and wrote nothing for as long as its failure policy says, and was killed
    BAD_GPU = "bad_gpu"  # a GPU that it had is in error: its agent says so, or its last error
    IMAGE = "image"
    LAUNCH = "launch"
    NODE_LOST = "node_lost"
    NODE_SHUTDOWN = "node_shutdown"
    EVICTED = "evicted"  # its cluster wanted the room for others, or its node
    NEVER_STARTED = "never_started"
    NO_NODE_LEFT = "no_node_left"  # log policies excluded every agent that could hold it


class ContainerResult(BaseModel):
    """How one container of an allocation ended, as the agent saw it."""

    model_config = ConfigDict(frozen=True)

    container_id: str
    rank: int = 0
    code: int | None = None
    cause: str = "exited"  # activities.launchers.base.ExitCause, or "launch_failed"
    reason: str = ""  # LaunchError.reason when the cause is launch_failed
    message: str = ""
    runs_in: str = ""  # what imports are looked for in: the path of an interpreter, or `image NAME`


class AllocationEnd(BaseModel):
    """The end of an allocation with its cause and a sentence for people."""

    model_config = ConfigDict(frozen=True)

    kind: ExitKind
    cause: EndCause
    message: str
    code: int | None = None


def classify(
    results: Sequence[ContainerResult],
    *,
    killed_by_us: bool,
    preemption_acked: bool,
    preemption_sent: bool = False,
    node_lost: bool = False,
    left_too_late: bool = False,
    hung: str = "",
    has_reported: bool = True,
    import_failure: str | None = None,
    last_error: str | None = None,
) -> AllocationEnd:
    """What the end of an allocation means; the first rule that matches decides.

    Args:
        results: of every container that was started, in the order in which they ended.
        killed_by_us: a kill was sent before any container had exited.
        preemption_acked: the harness acknowledged a preemption, or that it ran out of operations.
        preemption_sent: it had been asked to leave.
        node_lost: an agent of this allocation did not come back, and its containers elsewhere were killed, if any.
        left_too_late: the kill was sent because it had been asked to leave, and did not in time.
        hung: the kill was sent because it was silent; for how long.
        has_reported: the trial has reported metrics, in this or an earlier run.
        import_failure: the line with which its output ended, if that is Python's word for a failed import.
        last_error: the last line of the exception that ended it, or of the last error in its output.
    """
    if killed_by_us and hung:
        message = f"it reported and wrote nothing for {hung}, and was killed; its log shows what its threads were doing"
        return AllocationEnd(kind=ExitKind.FAILED, cause=EndCause.HANG, message=message)
    if killed_by_us and left_too_late:
        message = "killed, as it did not leave in time when asked to"
        return AllocationEnd(kind=ExitKind.CLEAN, cause=EndCause.UNRESPONSIVE, message=message)
    if killed_by_us:
        return AllocationEnd(kind=ExitKind.CLEAN, cause=EndCause.KILLED, message="killed on request")
    if not results and not node_lost:
        return AllocationEnd(kind=ExitKind.CLEAN, cause=EndCause.NEVER_STARTED, message="it never got its slots")
    if preemption_acked and preemption_sent:
        return AllocationEnd(
            kind=ExitKind.CLEAN, cause=EndCause.PREEMPTED, message="it left when asked to", code=_code(results)
        )
    if preemption_acked:
        message = "it had no open operation of the search left"
        return AllocationEnd(
            kind=ExitKind.CLEAN, cause=EndCause.OUT_OF_OPERATIONS, message=message, code=_code(results)
        )
    failed = next((result for result in results if result.cause != "exited" or result.code != 0), None)
    if failed is None and results and not node_lost and not has_reported:
        message = "exited with 0 without a single report: is `determined.core` used, and was it given the metrics?"
        return AllocationEnd(kind=ExitKind.FINISHED, cause=EndCause.NOTHING_REPORTED, message=message, code=0)
    if failed is None and results and not node_lost:
        return AllocationEnd(kind=ExitKind.FINISHED, cause=EndCause.EXIT_ZERO, message="exited with 0", code=0)
    if node_lost or (failed is not None and failed.cause == "lost"):
        message = "its agent or its container was lost"
        if failed is not None and failed.cause == "lost" and failed.message:
            message = f"its container was lost: {failed.message}"
        return AllocationEnd(kind=ExitKind.SYSTEM, cause=EndCause.NODE_LOST, message=message)
    assert failed is not None
    where = f"container of rank {failed.rank}: " if len(results) > 1 else ""
    if failed.cause == "killed":
        return AllocationEnd(
            kind=ExitKind.SYSTEM,
            cause=EndCause.NODE_SHUTDOWN,
            message=f"{where}stopped with its host",
            code=failed.code,
        )
    if failed.cause in ("evicted", "bad_gpu"):
        return AllocationEnd(
            kind=ExitKind.SYSTEM,
            cause=EndCause(failed.cause),
            message=f"{where}{failed.message or 'its cluster ended it'}",
            code=failed.code,
        )
    if failed.cause == "launch_failed":
        fatal = failed.reason in (*_IMAGE_FAULTS, "bad_spec")
        return AllocationEnd(
            kind=ExitKind.FATAL if fatal else ExitKind.SYSTEM,
            cause=EndCause.IMAGE if failed.reason in (*_IMAGE_FAULTS, "registry_unavailable") else EndCause.LAUNCH,
            message=f"{where}{failed.message or 'it could not be launched'}",
        )
    if failed.cause == "no_program":
        return AllocationEnd(
            kind=ExitKind.FATAL,
            cause=EndCause.IMAGE,
            message=f"{where}{failed.message or 'its image lacks its program'}",
            code=failed.code,
        )
    if failed.cause == "out_of_memory":
        message = f"{where}out of memory{': ' if failed.message else ''}{failed.message}"
        return AllocationEnd(kind=ExitKind.FAILED, cause=EndCause.OUT_OF_MEMORY, message=message, code=failed.code)
    return _failure(failed, where, import_failure, last_error)


#: Why a launch failed, if the image is at fault: another try would find the same image.
_IMAGE_FAULTS = ("image_missing", "image_denied", "wrong_architecture", "no_program")
#: Signals that a process brings upon itself: SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGSYS.
_CRASHES = {4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 11: "SIGSEGV", 31: "SIGSYS"}
#: Signals that ask a process to end.
_REQUESTS = {1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 15: "SIGTERM"}
#: What a shell, and our launcher, exit with when a command can't be executed or does not exist.
_NO_COMMAND = {126: "the entrypoint's command can't be executed", 127: "the entrypoint's command was not found"}


#: What CUDA, its libraries and the driver say of an error of the GPU itself, not of the program on it.
#: Source: CUDA Runtime API, "Error handling" (214, 220); NVIDIA, "Xid Errors".
BAD_GPU = re.compile(
    r"uncorrectable (ECC|NVLink) error|(ECC|NVLINK)_UNCORRECTABLE|EccUncorrectable|NvlinkUncorrectable"
    r"|GPU is lost|fallen off the bus|\bXid\b[^\n]*\b(48|61|62|63|64|74|79|92|94|95|119|120|140)\b",
    re.IGNORECASE,
)


def _failure(failed: ContainerResult, where: str, import_failure: str | None, last_error: str | None) -> AllocationEnd:
    """The user's code ended by itself, with an exit code that is not 0."""
    code = failed.code or 0
    cause, what = EndCause.USER_CODE, f"exited with code {code}"
    if code > 128:
        signal = code - 128
        cause, what = EndCause.SIGNAL, f"ended by signal {signal}"
        if signal in _CRASHES:
            cause, what = (
                EndCause.CRASH,
                f"{what} ({_CRASHES[signal]}): it crashed{f': {last_error}' if last_error else ''}",
            )
        elif signal in _REQUESTS:
            cause, what = EndCause.TERMINATED, f"{what} ({_REQUESTS[signal]}), which the cluster did not send"
        elif signal == 9:
            what += " (SIGKILL), which the cluster did not send: had its host no memory left?"
    elif code in _NO_COMMAND:
        cause, what = EndCause.ENTRYPOINT, f"{what}: {last_error or _NO_COMMAND[code]}"
    elif last_error and BAD_GPU.search(last_error):
        cause, what = EndCause.BAD_GPU, f"{what}: an error of its GPU: {last_error}"
    elif code == 1 and import_failure:
        cause, what = EndCause.IMPORT, f"{what}: {import_failure}{how_to_install(import_failure, failed.runs_in)}"
    elif last_error:
        what += f": {last_error}"
    return AllocationEnd(kind=ExitKind.FAILED, cause=cause, message=where + what, code=code)


#: What to install where a module has another name than its package.
_PACKAGES = {
    "sklearn": "scikit-learn", "skimage": "scikit-image", "cv2": "opencv-python-headless", "yaml": "pyyaml",
    "PIL": "pillow", "bs4": "beautifulsoup4", "dateutil": "python-dateutil", "git": "gitpython",
}  # fmt: skip
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([A-Za-z_]\w*)[\w.]*'")


def how_to_install(import_failure: str, runs_in: str) -> str:
    """Where that import was tried, and the commands that install what lacks; begins with `; `, empty if unknown."""
    if not runs_in:
        return ""
    found = _NO_MODULE.search(import_failure)
    is_image = runs_in.startswith("image ")
    text = f"; it ran in the {runs_in}" if is_image else f"; its Python is {runs_in}"
    if found is None:
        return text
    package = _PACKAGES.get(found[1], found[1])
    there = "build the image with it" if is_image else f"`{runs_in} -m pip install {package}`"
    return (
        f"{text}: {there}, or put `pip install {package}` into the experiment's startup-hook.sh; a module of your own "
        "has to be in the experiment's folder"
    )


def _code(results: Sequence[ContainerResult]) -> int | None:
    return results[0].code if results else None


def is_repeatable(end: AllocationEnd) -> bool:
    """Whether the same code will end in the same way again, however often it is started."""
    return end.cause in (EndCause.IMPORT, EndCause.ENTRYPOINT)


def backoff_s(failures: int, base_s: float, cap_s: float) -> float:
    """Seconds to wait before the next try after `failures` failures (1: the first), doubling up to `cap_s`."""
    return min(cap_s, base_s * 2.0 ** min(max(0, failures - 1), 64))  # 2**64 is past every cap
