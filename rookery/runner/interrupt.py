"""Ctrl-C, handled between chunks of rounds."""

import signal
import threading


class Interrupt:
    """Remembers Ctrl-C, so that a run can end between two chunks.

    A second Ctrl-C interrupts immediately. Outside the main thread, signals are left alone.
    """

    is_asked = False

    def __enter__(self) -> "Interrupt":
        self._before = None
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, *_) -> None:
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True
