"""What the tests of the report share."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # experiments are no installed package


@pytest.fixture
def browse(tmp_path):
    """Opens a page in a browser without a window: its document and what its console says."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        pytest.skip(f"needs a browser, one of {', '.join(names)}.")

    def open_page(path):
        flags = "headless no-sandbox disable-gpu disable-quic no-first-run disable-sync dump-dom"
        flags += " disable-background-networking disable-component-update enable-logging=stderr"
        flags += " v=0 virtual-time-budget=3000 window-size=1200,1600"
        command = [browser, *(f"--{flag}" for flag in flags.split())]
        command += [f"--user-data-dir={tmp_path / 'profile'}", path.as_uri()]
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", timeout=120, check=True
        )
        return done.stdout, re.findall(r"CONSOLE.*", done.stderr)

    return open_page
