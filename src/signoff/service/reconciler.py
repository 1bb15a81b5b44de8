"""The thread that brings every hosted pipeline to where it was asked to be, step by step."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from signoff.service.hosted import Hosted

logger = logging.getLogger(__name__)

EVERY_S = 0.2


class Reconciler:
    """Takes a step with each pipeline, again and again. What goes wrong with one stops no other."""

    def __init__(self, pipelines: Callable[[], Iterable[Hosted]]) -> None:
        self._pipelines = pipelines
        self._over = threading.Event()
        self._said: dict[str, str] = {}
        self._thread = threading.Thread(target=self._go_on, name="reconciler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take no more steps. The runs go on."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _go_on(self) -> None:
        while not self._over.wait(EVERY_S):
            for hosted in self._pipelines():
                self._step(hosted)

    def _step(self, hosted: Hosted) -> None:
        try:
            hosted.step()
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            if self._said.get(hosted.name) != said:
                logger.exception("%s: a step of the service failed; it is taken again", hosted.name)
            self._said[hosted.name] = said
        else:
            self._said.pop(hosted.name, None)
