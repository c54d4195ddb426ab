"""Print the held-out accuracy of a downloaded checkpoint: `python evaluate.py checkpoints/<uuid>`."""

from __future__ import annotations

import pathlib
import sys

from model import Network, load_data


def main() -> None:
    """Evaluate the checkpoint that the command line names."""
    if len(sys.argv) != 2:
        sys.exit("usage: python evaluate.py CHECKPOINT_DIR")
    _, held_out = load_data()
    print(f"{Network.load(pathlib.Path(sys.argv[1])).accuracy(*held_out):.4f}")


if __name__ == "__main__":
    main()
