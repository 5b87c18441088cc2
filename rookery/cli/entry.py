"""The process of the ``rookery`` command."""

import signal
import sys


def main() -> None:
    """Run the command; Ctrl-C while it is being loaded ends it without a traceback."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        # ends the process: an extension module that is being loaded would turn a KeyboardInterrupt
        # into an ImportError
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from rookery.cli.main import main as command
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        signal.signal(signal.SIGINT, before)
    command()


if __name__ == "__main__":
    main()
