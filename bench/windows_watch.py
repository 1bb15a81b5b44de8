"""What the benchmark of windows notes of a run besides its time: CPU, memory, state."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
from pyspark.sql.streaming import StreamingQueryListener

_LOOK_S = 0.25
_LOOKS_AT_MEMORY = 8


class Watch:
    """CPU time and peak memory of some processes while a block runs; what the looking costs is not counted.

    Each process is counted for itself, up to when it was last seen: what its parent says of it after its end
    would be missing where nobody waited for it, and in its place is what it used before the block.
    """

    def __init__(self, processes: Callable[[], list[psutil.Process]]) -> None:
        self._processes, self._over = processes, threading.Event()
        self._before: dict[psutil.Process, float] = {}
        self._last: dict[psutil.Process, float] = {}
        self._looking = 0.0
        self.peak_mb = 0.0

    def __enter__(self) -> Watch:
        self._before = self._cpu()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._last |= self._cpu()

    @property
    def cpu_seconds(self) -> float:
        used = sum(used - self._before.get(process, 0.0) for process, used in self._last.items())
        return used - (self._looking if psutil.Process() in self._last else 0.0)

    def _cpu(self) -> dict[psutil.Process, float]:
        used: dict[psutil.Process, float] = {}
        for process in self._processes():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                used[process] = times.user + times.system
        return used

    def _look(self) -> None:
        looks = 0
        while not self._over.wait(_LOOK_S):
            self._last |= self._cpu()
            looks += 1
            if looks % _LOOKS_AT_MEMORY == 0:
                self.peak_mb = max(self.peak_mb, self._memory_mb())
        self._looking = time.thread_time()

    def _memory_mb(self) -> float:
        total = 0
        for process in self._processes():
            with contextlib.suppress(psutil.Error):
                # Not what is resident: forked workers share most of that.
                total += process.memory_full_info().pss
        return total / 1e6


class StateListener(StreamingQueryListener):  # type: ignore[misc]  # PySpark is not typed
    """Notes after each batch of a query with state how large that is, and how long the batch took."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.rows: list[float] = []
        self.mb: list[float] = []
        self.batch_seconds: list[float] = []

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        operators = event.progress.stateOperators
        if operators:
            self.rows.append(sum(operator.numRowsTotal for operator in operators))
            self.mb.append(sum(operator.memoryUsedBytes for operator in operators) / 1e6)
            self.batch_seconds.append(event.progress.durationMs["triggerExecution"] / 1000)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        pass
