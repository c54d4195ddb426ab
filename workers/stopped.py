"""What `det down` says of the containers that it has stopped: by kind, whether what they ran goes on after `det up`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from workflows import names

_NAMES = {"COMMAND": "command", "NOTEBOOK": "notebook", "SHELL": "shell", "TENSORBOARD": "TensorBoard"}


def sentences(containers: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """One on each fate, if there is one.

    Args:
        containers: Their labels, as their launch orders have them.
    """
    trials = {labels[names.TRIAL_LABEL] for labels in containers if names.TRIAL_LABEL in labels}
    if trials:
        yield f"{_count(len(trials), 'running trial')} {_verb(len(trials), 'go')} on from the latest checkpoint"
    tasks = [labels for labels in containers if names.KIND_LABEL in labels]
    again = sum(names.GOES_ON_LABEL in labels for labels in tasks)
    if again:
        yield f"{_count(again, 'generic task')} {_verb(again, 'start')} again from the beginning"
    ended = Counter(labels[names.KIND_LABEL] for labels in tasks if names.GOES_ON_LABEL not in labels)
    if ended:
        kinds = [_count(count, _NAMES.get(kind, "generic task")) for kind, count in sorted(ended.items())]
        yield f"{', '.join(kinds)} ended for good: what they held in memory is lost, and nothing of it is started again"


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def _verb(number: int, verb: str) -> str:
    """Of the third person."""
    return verb if number != 1 else {"go": "goes", "start": "starts"}[verb]
