"""Runs that are stopped in every way end as if nothing had happened."""

import os

import pytest
from kill_many import kill_many


@pytest.mark.slow
def test_runs_that_are_stopped_at_random_moments_end_exactly():
    """The moments differ from test run to test run; ROOKERY_KILLS says how often to stop."""
    rows = kill_many(int(os.environ.get("ROOKERY_KILLS", "8")))
    mistakes = [what for row in rows.values() if row is not None for what in row.wrong]
    assert not mistakes, "\n".join(mistakes)
    stopped = {way for way, row in rows.items() if row is not None and row.stops}
    assert len(stopped) >= 3, "every round of the script tries all ways"
