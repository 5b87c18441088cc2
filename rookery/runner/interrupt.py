"""Ctrl-C and SIGTERM, handled between chunks of rounds."""

import signal
import threading


class Terminated(KeyboardInterrupt):
    """SIGTERM: ends a run as Ctrl-C does."""


_RAISED = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}


class Interrupt:
    """Remembers Ctrl-C or SIGTERM, so that a run can end between two chunks.

    A second signal interrupts immediately. Outside the main thread, signals are left alone.

    Attributes:
        asked: what to raise once the run is saved, or None while there was no signal.
    """

    asked: type[KeyboardInterrupt] | None = None

    def __enter__(self) -> "Interrupt":
        self._before = {}
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in _RAISED}
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            # None: the handler was not set from Python, and cannot be from here
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _handle(self, number: int, _) -> None:
        asked = _RAISED[signal.Signals(number)]
        if self.asked is not None:
            raise asked
        self.asked = asked
