"""TensorBoard, with readers of its own: `python -m determined.exec._board`.

TensorFlow's, where that is installed, keep a file open and see nothing of one that was put in its place, as files in
checkpoint storages are; and importing it takes many seconds.
"""

from __future__ import annotations

import importlib
import sys
import types


def main() -> None:
    """Run TensorBoard with the arguments of this process."""
    # TensorBoard's own way to say so: a module of this name.
    name = "tensorboard.compat.notf"
    sys.modules[name] = types.ModuleType(name)
    importlib.import_module("tensorboard.main").run_main()


if __name__ == "__main__":
    main()
