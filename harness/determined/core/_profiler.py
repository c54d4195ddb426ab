"""The system profiler: what the machine did while it trained, as metric groups of the trial."""

from __future__ import annotations

import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from determined.core._distributed import DistributedContext
    from determined.core._reporter import Reporter

# Shorter intervals measure the profiler itself.
_SHORTEST_S = 0.1


class ProfilerContext:
    """Measures the machine in the background. Get it as `core_context.profiler`.

    The first worker of each machine samples, and reports the means of `samples_per_report` samples as metrics of the
    trial without a step, below the agent's name:

    - `cpu`: `cpu_util_simple` (percent of all cores),
    - `memory`: `memory_free` (bytes that can be had without swapping),
    - `disk`: `disk_iops`, `disk_throughput_read`, `disk_throughput_write` (1/s, bytes/s), and `disk_util` (percent) of
      the file system `/`,
    - `network`: `net_throughput_sent`, `net_throughput_recv` (bytes/s),
    - `gpu`: `gpu_util` (percent) and `gpu_free_memory` (bytes) of each GPU, by its UUID, where NVML finds some.

    With `profiling: {enabled: true}` in the experiment's configuration it is on from the start. What can't be measured
    or sent is reported once, and never ends training.
    """

    def __init__(self, agent_id: str, reporter: Reporter | None, distributed: DistributedContext) -> None:
        self._agent_id = agent_id
        self._reporter = reporter
        self._distributed = distributed
        self._stop: threading.Event | None = None
        self._thread: threading.Thread | None = None

    def on(self, sampling_interval: float = 1, samples_per_report: int = 10) -> None:
        """Begin to measure. A profiler that is on stays as it is, with a warning.

        Args:
            sampling_interval: Seconds between two samples, 0.1 or more.
            samples_per_report: How many samples a report is the mean of.

        Raises:
            ValueError: An argument is out of its range.
        """
        if not sampling_interval >= _SHORTEST_S:
            raise ValueError(f"profiler.on: sampling_interval is {sampling_interval!r}, but must be 0.1 (s) or more")
        if not samples_per_report >= 1:
            raise ValueError(f"profiler.on: samples_per_report is {samples_per_report!r}, but must be 1 or more")
        if self._thread is not None:
            _logger().warning("the profiler is on already; switch it off before you change its settings")
            return
        if self._distributed.local_rank != 0 or self._reporter is None:
            return
        stop = self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run,
            args=(stop, float(sampling_interval), int(samples_per_report)),
            name="determined-profiler",
            daemon=True,
        )
        self._thread.start()

    def off(self) -> None:
        """End the measurement; what was sampled since the last report is reported. Does nothing if it is off."""
        if self._thread is not None and self._stop is not None:
            self._stop.set()
            self._thread.join()
        self._thread = self._stop = None

    def _run(self, stop: threading.Event, interval_s: float, count: int) -> None:
        from determined.core._system import System

        try:
            system = System()
        except Exception as e:  # noqa: BLE001 - a package that is missing, a kernel or a driver that withholds something
            _logger().warning(f"the profiler can't measure this machine: {type(e).__name__}: {e}; training goes on")
            return
        samples: list[dict[str, dict[str, Any]]] = []
        next_at = time.monotonic() + interval_s
        while not stop.wait(max(0.0, next_at - time.monotonic())):
            next_at = max(next_at, time.monotonic() - interval_s) + interval_s
            samples.append(system.sample())
            if len(samples) >= count:
                self._report(samples)
                samples.clear()
        if samples:
            self._report(samples)
        system.close()

    def _report(self, samples: list[dict[str, dict[str, Any]]]) -> None:
        assert self._reporter is not None
        for group in {group: None for sample in samples for group in sample}:
            mean = _mean([sample[group] for sample in samples if group in sample])
            self._reporter.offer_metrics(group, {self._agent_id: mean})


class DummyProfilerContext(ProfilerContext):
    """Stands in outside of a cluster: there is nobody to report to."""

    def __init__(self, distributed: DistributedContext) -> None:
        super().__init__("", None, distributed)

    def on(self, sampling_interval: float = 1, samples_per_report: int = 10) -> None:
        """Log it."""
        super().on(sampling_interval, samples_per_report)
        _logger().info("the profiler measures nothing outside of a cluster")


def _mean(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean of each number; a series that some samples lack, of those that have it."""
    means: dict[str, Any] = {}
    for name in {name: None for sample in samples for name in sample}:
        values = [sample[name] for sample in samples if name in sample]
        means[name] = _mean(values) if isinstance(values[0], dict) else sum(values) / len(values)
    return means


def _logger() -> Any:
    import logging

    return logging.getLogger("determined.core")
