"""Where a command line names DeepSpeed's configuration."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def get_ds_config_path_from_args(args: Sequence[str]) -> str | None:
    """The file that `--deepspeed FILE` or `--deepspeed=FILE` names; None if the option is not there."""
    for at, word in enumerate(args):
        if word.startswith("--deepspeed="):
            return word.partition("=")[2]
        if word == "--deepspeed" and at + 1 < len(args):
            return args[at + 1]
    return None
