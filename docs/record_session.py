"""Record `docs/terminal-session.md`: a session with `det` in a real terminal, from an embedded cluster of its own.

    python -m docs.record_session

It needs tmux, and scikit-learn for the example (`pip install '.[examples]'`; for another Python that has it and the
harness, set UNDETERRED_TRIAL_PYTHON). Everything it starts and writes, but for the page, is in a temporary folder.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kit.servers import free_port

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "terminal-session.md"
WIDTH, HEIGHT = 136, 30

HEAD = """# A session in the terminal

Recorded by `python -m docs.record_session` in a terminal of {width} by {height} characters, from a cluster of `det up`
with two slots. What follows is what the screen showed; nothing was edited but the machine's name.
"""


class Screen:
    """A terminal of tmux, with a shell in it."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._socket = str(folder / "tmux")
        self._environment = environment
        size = ["-x", str(WIDTH), "-y", str(HEIGHT)]
        self._tmux(
            "-f",
            os.devnull,
            "new-session",
            "-d",
            "-s",
            "session",
            *size,
            "env",
            "PS1=$ ",
            "bash",
            "--norc",
            "--noprofile",
        )

    def type(self, text: str) -> None:
        """Clear the screen, then type a command and Enter."""
        self._tmux("send-keys", "-t", "session", "C-l")
        time.sleep(0.2)
        self._tmux("clear-history", "-t", "session")
        self._tmux("send-keys", "-t", "session", "-l", text)
        self._tmux("send-keys", "-t", "session", "Enter")

    def press(self, key: str) -> None:
        """Press a key."""
        self._tmux("send-keys", "-t", "session", key)

    def text(self) -> str:
        """What it shows, with what has scrolled away since the last command."""
        return self._tmux("capture-pane", "-p", "-S", "-", "-t", "session").rstrip() + "\n"

    def until(self, pattern: str, within_s: float = 60.0) -> str:
        """Wait until it shows something. Raises: TimeoutError."""
        return self._wait(lambda text: re.search(pattern, text, re.MULTILINE) is not None, pattern, within_s)

    def until_prompt(self, within_s: float = 120.0) -> str:
        """Wait until the command has ended; what it printed, without the prompt that follows."""
        text = self._wait(lambda text: text.rstrip().endswith("\n$"), "the prompt", within_s)
        return text.rstrip().removesuffix("$").rstrip() + "\n"

    def close(self) -> None:
        """End the terminal and what runs in it."""
        self._tmux("kill-server")

    def _wait(self, condition: Callable[[str], bool], what: str, within_s: float) -> str:
        deadline = time.monotonic() + within_s
        while not condition(text := self.text()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {within_s:g} s for {what}; the screen shows:\n{text}")
            time.sleep(0.05)
        return text

    def _tmux(self, *words: str) -> str:
        command = ["tmux", "-u", "-S", self._socket, *words]
        return subprocess.run(command, env=self._environment, capture_output=True, text=True, check=True).stdout


def record(screen: Screen) -> Iterator[tuple[str, str]]:
    """The session: a sentence on each part, and what the screen showed."""
    screen.type("det experiment create adaptive.yaml . -f")
    running = screen.until(r"(?s)trials by rung.*COMPLETED.*l shows a log")
    yield (
        "Create an experiment and watch it: `-f` in a terminal. The picture changes in place; here it is half-way.",
        running,
    )
    screen.press("l")
    logs = screen.until(r"epoch \d+: loss")
    yield "The key `l` shows the log of the first trial below, `n` and `p` go to the next and the previous one.", logs
    screen.press("l")
    yield "At its end the last picture stays, and one line sums it up.", screen.until_prompt()
    screen.type("det experiment list")
    yield "The list:", screen.until_prompt()
    screen.type("det experiment create const.yaml .")
    created = screen.until_prompt()
    screen.type("det trial why 17")
    yield "Another experiment, and why its trial is where it is:", created + screen.until_prompt()
    screen.type("det trial logs -f 17")
    yield (
        "Its log, line by line until the trial ends. If the cluster goes away meanwhile, it waits and goes on behind \
the last line.",
        screen.until_prompt(),
    )
    screen.type("det experiment download 1")
    yield "The best checkpoint of the search:", screen.until_prompt()


@contextmanager
def cluster(folder: Path) -> Generator[dict[str, str]]:
    """An embedded cluster in `folder`; the environment in which `det` talks to it."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(("DET_", "UNDETERRED_", "TMUX"))}
    python = os.environ.get("UNDETERRED_TRIAL_PYTHON") or sys.executable
    port = free_port()
    environment = {
        **own,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{own['PATH']}",
        "UNDETERRED_HOME": str(folder / "home"),
        "UNDETERRED_PORT": str(port),
        "UNDETERRED_TEMPORAL_PORT": str(free_port()),
        "UNDETERRED_TEMPORAL_UI_PORT": str(free_port()),
        "UNDETERRED_TRIAL_PYTHON": python,
        "UNDETERRED_ADMIN_PASSWORD": "only for this recording",
        "DET_DEBUG_CONFIG_PATH": str(folder / "config"),
        "DET_MASTER": f"http://localhost:{port}",
        "TERM": "screen-256color",
        "LC_ALL": "C.UTF-8",
    }
    embedded = [sys.executable, "-m", "workers.embedded"]
    subprocess.run([*embedded, "up", "--slots", "2", "--launcher", "process"], env=environment, cwd=ROOT, check=True)
    try:
        yield environment
    finally:
        subprocess.run([*embedded, "down"], env=environment, cwd=ROOT, check=True)


def main() -> None:
    """Record the session and write the page."""
    if shutil.which("tmux") is None:
        sys.exit("tmux is not on PATH; install it (`apt-get install tmux`, `brew install tmux`).")
    python = os.environ.get("UNDETERRED_TRIAL_PYTHON") or sys.executable
    if subprocess.run([python, "-c", "import sklearn, determined"], capture_output=True, check=False).returncode:
        sys.exit(
            f"{python} lacks scikit-learn or the harness; `pip install '.[examples]'`, or set UNDETERRED_TRIAL_PYTHON."
        )
    parts = [HEAD.format(width=WIDTH, height=HEIGHT)]
    with tempfile.TemporaryDirectory() as name, cluster(Path(name)) as environment:
        digits = Path(name) / "digits"
        shutil.copytree(ROOT / "examples" / "digits", digits, ignore=shutil.ignore_patterns("__pycache__"))
        screen = Screen(Path(name), environment)
        try:
            screen.type(f"cd {digits}")
            for sentence, shown in record(screen):
                text = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "laptop", shown)
                if name in text:
                    raise ValueError(f"the path of this machine's temporary folder is on the screen:\n{text}")
                lines = [line.rstrip() for line in text.splitlines()]
                parts.append("\n".join([sentence, "", "```", *lines, "```", ""]))
        finally:
            screen.close()
    PAGE.write_text("\n".join(parts), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
