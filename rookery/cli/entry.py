"""The process of the ``rookery`` command."""

import sys


def main() -> None:
    """Run the command; Ctrl-C while it is being loaded ends it without a traceback."""
    try:
        from rookery.cli.main import main as command
    except KeyboardInterrupt:
        sys.exit(130)
    command()


if __name__ == "__main__":
    main()
