"""Terminals that outlive their windows: each is a program, its newest output, and the windows that show it.

A window says how much it has seen, and gets what is missing. It acknowledges what it has shown: no window is sent more
than it can show, and a program waits for windows that keep up, as it would for a screen. One that has stopped is not
waited for; it learns how much it has missed.
"""

from __future__ import annotations

import asyncio
import collections
import os
import re
import secrets
import time

from determined.exec._pty import Program
from determined.exec._scrollback import Scrollback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

#: Bytes of output that a terminal keeps.
KEPT = 2 * 2**20
MOST_TERMINALS = 8
#: Of all terminals together.
MOST_WINDOWS = 32
LARGEST_COLUMNS, LARGEST_ROWS = 1000, 500
#: What a window may be sent before it acknowledges, and how far it may lag before the program waits for it: both less
#: than is kept, so that a window that keeps up misses nothing.
_AHEAD, _LAG = 512 * 1024, 2**20
#: Without an acknowledgment for so long a window has stopped.
_STOPPED_S = 2.0
_PIECE = 64 * 1024
_MOST_SIZES = 1000
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
# After the end of its program: how long the last output may take, and how long no more may come.
_LAST_OUTPUT_S, _QUIET_S = 2.0, 0.1


class Refused(Exception):
    """A window can't be had, or breaks the rules. Its text says why.

    Attributes:
        code: Of the WebSocket that is closed.
    """

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


#: Codes of closed WebSockets: this window has done what none of ours does; there are too many.
MALFORMED, TOO_MANY, FAILED = 1008, 4001, 4002


def check_size(columns: object, rows: object) -> tuple[int, int]:
    """The size of a window. Raises: Refused."""
    for value, name, largest in ((columns, "columns", LARGEST_COLUMNS), (rows, "rows", LARGEST_ROWS)):
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= largest:
            raise Refused(MALFORMED, f"{name}: expected a number from 1 to {largest}")
    return columns, rows  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


class Window:
    """One look at a terminal: what of its output was sent, and what was shown."""

    def __init__(self, terminal: Terminal, columns: int, rows: int, offset: int) -> None:
        self.terminal = terminal
        self.size = columns, rows
        self.sent = self.shown = offset
        self.wake = asyncio.Event()
        self._moved_at = time.monotonic()

    @property
    def _room(self) -> int:
        return _AHEAD - (self.sent - self.shown)

    def next_output(self) -> bytes:
        """What it is to be sent now; nothing if it has everything, or more than it has shown."""
        most = min(_PIECE, self._room, self.terminal.until_resized(self.sent))
        piece = self.terminal.scrollback.read(self.sent, most) if most > 0 else b""
        self.sent += len(piece)
        return piece

    def skip(self) -> int:
        """Go to the oldest output that is kept, if it takes any; how many bytes are lost."""
        lost = max(0, self.terminal.scrollback.start - self.sent) if self._room > 0 else 0
        if lost:
            self.sent = self.shown = self.sent + lost
        return lost

    def acknowledge(self, offset: object) -> None:
        """It has shown everything before an offset. Raises: Refused."""
        if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= self.sent:
            raise Refused(MALFORMED, "shown: expected an offset of what was sent")
        self.shown = max(self.shown, offset)
        self._moved_at = time.monotonic()
        self.wake.set()
        self.terminal.pace()

    def resize(self, columns: object, rows: object) -> None:
        """It has another size, and the terminal has it as well if the window leads. Raises: Refused."""
        self.size = check_size(columns, rows)
        self.terminal.lead(self if self.terminal.leader is self else None)

    @property
    def holds_back(self) -> bool:
        """Whether the program waits for it."""
        lag = self.terminal.scrollback.end - self.shown
        return lag > _LAG and time.monotonic() - self._moved_at < _STOPPED_S


class Terminal:
    """A program, its newest output, and its windows.

    Attributes:
        epoch: Which program of this name it is: offsets are for one.
        leader: The window that was attached or typed in last. The terminal has its size, and it alone answers what
            the program asks of a terminal.
    """

    def __init__(self, program: Program, columns: int, rows: int) -> None:
        self.epoch = secrets.token_hex(8)
        self.scrollback = Scrollback(KEPT)
        self.exit_code: int | None = None
        self.leader: Window | None = None
        self.windows: list[Window] = []
        self._program = program
        # Where in the output it got which size: what was written for one is not for another.
        self._sizes = [(0, (columns, rows))]
        self._loop = asyncio.get_running_loop()
        self._is_reading = self._is_ending = False
        self._typing = asyncio.Lock()
        self._ending: asyncio.Future[None] | None = None
        self._resting: asyncio.TimerHandle | None = None
        self._read_on()

    # -- windows -----------------------------------------------------------------------------------------------------

    def attach(self, window: Window) -> None:
        """Show it in one more window, which leads."""
        self.windows.append(window)
        self.lead(window)

    def detach(self, window: Window) -> None:
        """A window is closed."""
        self.windows.remove(window)
        if self.leader is window:
            self.leader = None
            self.lead(self.windows[-1] if self.windows else None)
        self.pace()

    def lead(self, window: Window | None) -> None:
        """Make a window the one that leads; None: the one that does has another size."""
        changed = window is not None and window is not self.leader
        self.leader = window or self.leader
        if self.leader is not None and self.leader.size != self._sizes[-1][1]:
            changed = True
            self._resize(self.leader.size)
        if changed:
            self._tell()

    def _resize(self, size: tuple[int, int]) -> None:
        end = self.scrollback.end
        kept = [each for each in self._sizes[-_MOST_SIZES:] if each[0] < end]
        outdated = sum(1 for offset, _ in kept[1:] if offset <= self.scrollback.start)
        self._sizes = [*kept[outdated:], (end, size)]
        self._program.resize(*size)

    def size_at(self, offset: int) -> tuple[int, int]:
        """The size that it had when it wrote what is behind an offset."""
        return next((size for at, size in reversed(self._sizes) if at <= offset), self._sizes[0][1])

    def until_resized(self, offset: int) -> int:
        """How many bytes behind an offset were written for one size."""
        return next((at for at, _ in self._sizes if at > offset), self.scrollback.end) - offset

    def _tell(self) -> None:
        for window in self.windows:
            window.wake.set()

    # -- output ------------------------------------------------------------------------------------------------------

    def pace(self) -> None:
        """Let the program wait for windows that keep up, and for no others."""
        if self._is_ending:
            return
        is_held = any(window.holds_back for window in self.windows)
        if is_held:
            self._rest(_STOPPED_S)
        elif not self._is_reading and self._resting is None:
            self._read_on()

    def _rest(self, time_s: float) -> None:
        """Read nothing for a time."""
        self._loop.remove_reader(self._program.fd)
        self._is_reading = False
        if self._resting is not None:
            self._resting.cancel()
        self._resting = self._loop.call_later(time_s, self._wake_up)

    def _wake_up(self) -> None:
        self._resting = None
        self.pace()

    def _read_on(self) -> None:
        self._is_reading = True
        self._loop.add_reader(self._program.fd, self._read)

    def _read(self) -> None:
        if self._take() is None:  # no program has it open: it has ended, or will open it again
            self._rest(_QUIET_S)
            self.note_end()
        else:
            self.pace()

    def _take(self) -> bool | None:
        """Read what is there: False if nothing is, None if nothing has it open."""
        try:
            data = os.read(self._program.fd, _PIECE)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            return None
        self.scrollback.append(data)
        self._tell()
        return True

    # -- input -------------------------------------------------------------------------------------------------------

    async def type(self, window: Window, data: bytes) -> None:
        """Type for a window, as fast as the program takes it; it leads from now on."""
        self.lead(window)
        async with self._typing:  # what is pasted at two places is not mixed
            while data and not self._is_ending:
                try:
                    data = data[os.write(self._program.fd, data[:_PIECE]) :]
                except BlockingIOError:
                    await self._writable()
                except OSError:
                    return  # nothing has it open

    async def _writable(self) -> None:
        fd, ready = self._program.fd, self._loop.create_future()
        self._loop.add_writer(fd, lambda: None if ready.done() else ready.set_result(None))
        try:
            await asyncio.wait([ready], timeout=_STOPPED_S)
        finally:
            if not self._is_ending:
                self._loop.remove_writer(fd)

    # -- its end -----------------------------------------------------------------------------------------------------

    def note_end(self) -> None:
        """See whether the program has ended; to be called when some program has."""
        if not self._is_ending and self._program.exit_code() is not None:
            self._is_ending = True
            self._loop.remove_reader(self._program.fd)
            self._loop.remove_writer(self._program.fd)
            self._ending = asyncio.ensure_future(self._finish())

    async def _finish(self) -> None:
        """What it has written arrives after its end; what it has left behind may write on without a limit."""
        deadline, quiet_s = time.monotonic() + _LAST_OUTPUT_S, 0.0
        while time.monotonic() < deadline and quiet_s < _QUIET_S:
            found = self._take()
            if found is None:
                break
            await asyncio.sleep(0 if found else 0.01)
            quiet_s = 0.0 if found else quiet_s + 0.01
        self._program.end()
        self.exit_code = self._program.exit_code()
        self._tell()


class Terminals:
    """The terminals of a container, by name.

    Args:
        start: Starts a program on a terminal of a number of columns and rows. Raises: OSError.
    """

    def __init__(self, start: Callable[[int, int], Program]) -> None:
        self._start = start
        self._named: collections.OrderedDict[str, Terminal] = collections.OrderedDict()

    def attach(self, name: str, epoch: str, offset: int, size: tuple[int, int]) -> Window:
        """A new window. Without an epoch that is there, it begins with the oldest output that is kept.

        A terminal of this name is started if there is none, or if it has ended and the window does not know it.
        Raises: Refused.
        """
        if not _NAME.fullmatch(name):
            raise Refused(MALFORMED, "name: expected at most 32 of a-z, 0-9 and '-'")
        if sum(len(each.windows) for each in self._named.values()) >= MOST_WINDOWS:
            raise Refused(TOO_MANY, f"there are {MOST_WINDOWS} windows already: close one of them first")
        terminal = self._named.get(name)
        knows_it = terminal is not None and epoch == terminal.epoch
        if terminal is None or (terminal.exit_code is not None and not knows_it):
            terminal, knows_it = self._new(name, size), False
        if knows_it and not 0 <= offset <= terminal.scrollback.end:
            raise Refused(MALFORMED, "from: expected an offset of this terminal")
        window = Window(terminal, *size, offset if knows_it else terminal.scrollback.start)
        terminal.attach(window)
        return window

    def _new(self, name: str, size: tuple[int, int]) -> Terminal:
        if name not in self._named and len(self._named) >= MOST_TERMINALS:
            idle = (each for each, terminal in self._named.items() if terminal.exit_code is not None)
            oldest = next((each for each in idle if not self._named[each].windows), None)
            if oldest is None:
                raise Refused(TOO_MANY, f"there are {MOST_TERMINALS} terminals already: end one of them first")
            del self._named[oldest]
        try:
            program = self._start(*size)
        except OSError as e:
            raise Refused(FAILED, f"no terminal can be started: {e.strerror}") from None
        self._named.pop(name, None)
        self._named[name] = Terminal(program, *size)
        return self._named[name]

    def note_ends(self) -> None:
        """See which programs have ended."""
        for terminal in list(self._named.values()):
            terminal.note_end()

    def listed(self) -> list[dict[str, object]]:
        """For people: names, whether they have ended, and how many look at them."""
        return [
            {"name": name, "ended": terminal.exit_code is not None, "windows": len(terminal.windows)}
            for name, terminal in self._named.items()
        ]
