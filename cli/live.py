"""Watching an experiment in a terminal: the picture is drawn anew as things change, and keys choose what it shows."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.live import Live
from rich.text import Text

from cli import log_output, session
from cli.keys import single_keys
from cli.picture import View, by_interest, picture
from cli.snapshot import INTERVAL_S, Snapshot, snapshot
from determined import errors

_REDRAW_S = 0.25
_MOST_CURVES = 30
_MOST_LINES = 200


def watch(experiment_id: int) -> Snapshot:
    """Show an experiment until it has ended; its last state. Raises: KeyboardInterrupt on q, as on Ctrl-C."""
    feed = Feed(experiment_id)
    feed.start()
    try:
        with Live(auto_refresh=False) as live, single_keys() as next_key, _quietly():
            while True:
                now, view = feed.latest()
                if now is not None:
                    live.update(picture(now, live.console.height, view), refresh=True)
                    if now.is_over:
                        return now
                elif view.is_away:
                    live.update(Text("the cluster does not answer; trying again …", style="yellow"), refresh=True)
                key = next_key(_REDRAW_S)
                if key == "q":
                    raise KeyboardInterrupt
                if key:
                    feed.press(key)
    finally:
        feed.stop()


class Feed:
    """Asks the cluster about once a second, in a thread of its own, so that keys are heard at once."""

    def __init__(self, experiment_id: int) -> None:
        self._experiment_id = experiment_id
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._is_stopped = False
        self._failure: Exception | None = None
        self._now: Snapshot | None = None
        self._is_away = False
        self._curves: Mapping[int, Sequence[float]] = {}
        self._log_of: int | None = None
        self._log: Sequence[str] | None = None

    def start(self) -> None:
        """Begin to ask."""
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        """End, after the request that is under way."""
        self._is_stopped = True
        self._wake.set()

    def latest(self) -> tuple[Snapshot | None, View]:
        """What is known by now. Raises what the cluster's refusal raised."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            return self._now, View(self._curves, self._log, self._log_of, self._is_away)

    def press(self, key: str) -> None:
        """l shows or hides a log, n and p go to the next and the previous trial's."""
        with self._lock:
            ids = sorted(int(trial["id"]) for trial in self._now.trials) if self._now is not None else []
            if not ids:
                return
            if key == "l":
                self._log_of = ids[0] if self._log_of is None else None
            elif key in ("n", "p") and self._log_of in ids:
                step = 1 if key == "n" else -1
                self._log_of = ids[(ids.index(self._log_of) + step) % len(ids)]
            else:
                return
            self._log = None if self._log_of is None else []
        self._wake.set()

    def _run(self) -> None:
        while not self._is_stopped:
            self._wake.clear()
            try:
                self._ask()
            except Exception as error:  # noqa: BLE001 -- it is raised where the person is, by `latest`
                with self._lock:
                    self._failure = error
                return
            self._wake.wait(INTERVAL_S)

    def _ask(self) -> None:
        with self._lock:
            log_of = self._log_of
        now = snapshot(self._experiment_id)
        curves: dict[int, list[float]] = {}
        log: list[str] | None = None
        if now is not None:
            try:
                curves = _curves(now)
                log = _log(log_of) if log_of is not None else None
            except (errors.MasterNotFoundException, errors.ServerException):
                now = None
        with self._lock:
            self._is_away = now is None
            if now is None:
                return
            self._now, self._curves = now, curves
            if self._log_of == log_of:
                self._log = log


def _curves(now: Snapshot) -> dict[int, list[float]]:
    """How the searcher's metric went, of the trials that a person looks at first."""
    ids = [trial["id"] for trial in by_interest(now)[:_MOST_CURVES]]
    if not ids:
        return {}
    params = {"trialIds": ids, "metricIds": [f"validation.{now.metric}"], "maxDatapoints": 64}
    found: list[dict[str, Any]] = session.fetch("trials/time-series", **params).get("trials") or []
    curves: dict[int, list[float]] = {}
    for one in found:
        metrics: list[dict[str, Any]] = one.get("metrics") or []
        curves[int(one["trial"]["id"])] = [
            float(point["values"][now.metric]) for metric in metrics for point in metric["data"]
        ]
    return curves


def _log(trial_id: int) -> list[str]:
    path = f"/api/v1/trials/{trial_id}/logs"
    return [str(line["message"]) for line in log_output.read(path, {}, tail=_MOST_LINES)]


@contextmanager
def _quietly() -> Generator[None]:
    """Warnings of the libraries would tear the picture."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
