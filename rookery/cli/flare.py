"""The ``rookery`` command's part for NVIDIA FLARE: simulate, join, submit and stop."""

from pathlib import Path
from typing import Any

import tyro


def simulate(study: tyro.conf.Positional[Path], workspace: Path = Path("runs/flare")) -> None:
    """Run a study of several sites with NVIDIA FLARE's simulator: a process for each site.

    Needs pip install 'rookery[flare]'. When a site crashes, the same command goes on from the last
    checkpoint. examples/04_deploy has a study and shows all four commands.

    Args:
        study: its Python file; python -c "help('rookery.remote.study')" says what it must hold.
        workspace: a folder for all sites, and for the run.
    """
    print(f"The run is in {_jobs().simulate(study, workspace)}.")


def join(kit: tyro.conf.Positional[Path], study: tyro.conf.Positional[Path]) -> None:
    """Make a party's FLARE kit ready for a study. Server and sites each do it for themselves.

    The study is copied into the kit, and jobs may name rookery's classes from then on. A job itself
    carries no code. Start the party afterwards, with startup/start.sh in the kit.

    Args:
        kit: the folder that FLARE has provisioned for the party, with startup and local in it.
        study: the study's Python file; read it, for the site's data is given to it.
    """
    _jobs().join(kit, study)
    print(f"{kit} takes part in {study.stem} when it is started.")


def submit(study: tyro.conf.Positional[Path], kit: Path) -> None:
    """Have running parties carry out a study, and wait until they have.

    The server's console shows who answers; the run is kept in the server's kit, in rookery. When a
    site crashes the job fails, and the same command goes on from the last checkpoint.

    Args:
        study: its Python file; it tells which sites take part.
        kit: the folder that FLARE has provisioned for the user who submits.
    """
    print(f"Job {_jobs().submit(study, kit)} is done.")


def stop(kit: Path) -> None:
    """End the server and all sites of a FLARE project.

    Args:
        kit: the folder that FLARE has provisioned for the project's administrator.
    """
    _jobs().shut_down(kit)


def _jobs() -> Any:
    # FLARE is an extra, and the other commands do without it
    from rookery.remote.transports.flare import deploy

    return deploy
