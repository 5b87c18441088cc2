"""The ``rookery`` command."""

import json
import sys
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from rookery import config
from rookery.clients import datasets
from rookery.demo import run_demo

app = tyro.extras.SubcommandApp()


@app.command(name="demo")
def demo(
    out: Path = Path("runs/demo"),
    rounds: int = 150,
    data: Path | None = None,
) -> None:
    """Compare three settings of FedNest on 5,000 real digits of 20 clients. About a minute.

    Args:
        out: where the runs, the picture and the page are written.
        rounds: how many rounds every setting runs.
        data: folder with data files; the digits come with the installed packages.
    """
    run_demo(Console(), out=out, rounds=rounds, data=data)


@app.command(name="run")
def run(
    experiment: tyro.conf.Positional[Path],
    out: Path | None = None,
    data: Path | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    overwrite: bool = False,
) -> None:
    """Run an experiment described by a TOML file.

    An interrupted run goes on where it stopped when the same command is given again.

    Args:
        experiment: the file, for example experiments/fednest_fig2/noniid.toml.
        out: the run's directory; runs/<folder>-<file>-seed<seed> if not given.
        data: folder with data files; otherwise ROOKERY_DATA, then the user's cache.
        rounds: instead of the file's number of rounds.
        seed: instead of the file's seed.
        overwrite: begin afresh in a directory that holds another run.
    """
    console = Console()
    loaded = config.load(experiment)
    overrides = {k: v for k, v in (("rounds", rounds), ("seed", seed)) if v is not None}
    seed = {**loaded.run_settings, **overrides}.get("seed", 0)
    folder = out or Path("runs") / f"{experiment.parent.name}-{experiment.stem}-seed{seed}"
    result = loaded.run(
        directory=folder, data_directory=data, overwrite=overwrite, console=console, **overrides
    )
    last = result.history.rows[-1]
    table = Table("", title=f"{loaded.title}: {result.status}", show_header=False)
    for name, value in last.items():
        table.add_row(name, f"{value:,.6g}" if isinstance(value, float) else f"{value:,}")
    console.print(table)
    console.print(f"Kept in {folder}.")
    if result.status != "finished":
        raise SystemExit(1)


@app.command(name="list")
def list_names(
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> None:
    """List algorithms, tasks, partitions, data sets and engines by the names that files use.

    Args:
        as_json: print JSON instead of a table.
    """
    groups = {
        "algorithm": _first_lines(config.ALGORITHMS),
        "part": _first_lines(config.PARTS),
        "task": _first_lines(config.TASKS),
        "partition": _first_lines(config.PARTITIONS),
        "data": datasets.available(),
        "engine": _first_lines(config.ENGINES),
    }
    if as_json:
        print(json.dumps(groups, indent=2))
        return
    table = Table("kind", "name", "what it is")
    for kind, names in groups.items():
        for name, text in names.items():
            table.add_row(kind, name, text)
        table.add_section()
    Console().print(table)


def _first_lines(objects) -> dict[str, str]:
    return {name: (fn.__doc__ or "").strip().split("\n")[0] for name, fn in objects.items()}


def main() -> None:
    """Entry point; errors that a user can mend are shown without a traceback."""
    try:
        app.cli(
            prog="rookery",
            description=(
                "Federated nested optimisation: bilevel, minimax, compositional problems whose "
                "data stays with the clients. Start with: rookery demo"
            ),
        )
    except (ValueError, FileNotFoundError) as error:
        Console(stderr=True).print(f"[bold red]Error:[/] {error}", highlight=False)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
