"""Ctrl-C, heard at a moment of our choosing."""

import signal
import threading


class Interrupt:
    """Takes note of Ctrl-C, so that it is heard between chunks and never in the middle of one.

    A second Ctrl-C is not waited with. Outside the main thread, signals stay as they are.
    """

    is_asked = False

    def __enter__(self) -> "Interrupt":
        self._before = None
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._heard)
        return self

    def __exit__(self, *_) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _heard(self, *_) -> None:
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True
