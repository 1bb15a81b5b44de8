"""What the benchmark of windows notes of a run besides its time: CPU, memory, state."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import psutil
from pyspark.sql.streaming import StreamingQueryListener


class Watch:
    """CPU time and peak memory of some processes while a block runs."""

    def __init__(self, processes: Callable[[], list[psutil.Process]]) -> None:
        self._processes, self._over = processes, threading.Event()
        self.peak_mb = self.cpu_seconds = 0.0

    def __enter__(self) -> Watch:
        self._before = self._cpu()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cpu_seconds = self._cpu() - self._before
        self._over.set()
        self._thread.join()

    def _cpu(self) -> float:
        total = 0.0
        for process in self._processes():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        return total

    def _look(self) -> None:
        while not self._over.wait(1):
            total = 0
            for process in self._processes():
                with contextlib.suppress(psutil.Error):
                    # Not what is resident: forked workers share most of that.
                    total += process.memory_full_info().pss
            self.peak_mb = max(self.peak_mb, total / 1e6)


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
        if operators and event.progress.numInputRows:
            self.rows.append(sum(operator.numRowsTotal for operator in operators))
            self.mb.append(sum(operator.memoryUsedBytes for operator in operators) / 1e6)
            self.batch_seconds.append(event.progress.durationMs["triggerExecution"] / 1000)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        pass
