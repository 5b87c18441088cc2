"""The ``rookery`` command's part for sites: what has left."""

from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Column, Table

from rookery.remote.client import site_log
from rookery.remote.client.site_log import Summary


def audit(log: tyro.conf.Positional[Path]) -> None:
    """Show what has left a site, from the site's own log: steps, shapes, norms, bytes, epsilon.

    Refused requests and errors are shown too; the text of an error is in the log, under its
    reference.

    Example: rookery audit kits/clinic-1

    Args:
        log: a site's log, or a folder that holds logs, such as a FLARE kit.
    """
    files = [log] if log.is_file() else sorted(log.rglob(site_log.NAME))
    if not files:
        raise ValueError(f"there is no site's log ({site_log.NAME}) in {log}.")
    console = Console()
    for file in files:
        _print(site_log.summarise(file), file, console)


def _print(summary: Summary, file: Path, console: Console) -> None:
    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    say(f"{file}")
    if summary.first is None or summary.last is None:
        say("Nothing has left.")
        return
    say(f"From {summary.first:%Y-%m-%d %H:%M:%S} to {summary.last:%Y-%m-%d %H:%M:%S} UTC.")
    for study, digest in summary.joined:
        say(f"Joined: {study}, {digest}.")
    step, arrays = (Column(name, overflow="fold") for name in ("step", "arrays"))
    table = Table("client", step, "replies", arrays, "largest norm", "bytes")
    for (client, step), traffic in sorted(summary.traffic.items()):
        table.add_row(
            str(client), step.rpartition(".")[2], str(traffic.replies),
            ", ".join(sorted(traffic.shapes)), f"{traffic.largest_norm:.4g}",
            f"{traffic.nbytes:,}",
        )  # fmt: skip
    console.print(table)
    replies = sum(traffic.replies for traffic in summary.traffic.values())
    say(f"In all {replies} replies, {sum(t.nbytes for t in summary.traffic.values()):,} bytes.")
    for client, epsilon in sorted(summary.epsilon.items()):
        known = "unknown: replies left without noise" if epsilon is None else f"{epsilon:.4g}"
        say(f"Epsilon of client {client}: {known}.")
    for client, times in sorted(summary.not_finite.items()):
        say(f"Not finite: {times} replies of client {client}. Noise left in their place.")
    for (client, step, reason), times in sorted(summary.refused.items()):
        who = f"client {client}, " if client >= 0 else ""
        say(f"Refused {times} times: {who}{step.rpartition('.')[2]}: {reason}.")
    for reference, client, kind in summary.errors:
        say(f"Error {reference}: {kind}" + (f", client {client}." if client >= 0 else "."))
