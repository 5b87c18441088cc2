"""The command line."""

from rookery.cli.main import main as main
