"""The ``rookery`` command's part for NVIDIA FLARE: simulate, join, submit and stop."""

from pathlib import Path
from types import ModuleType

import tyro


def simulate(study: tyro.conf.Positional[Path], workspace: Path = Path("runs/flare")) -> None:
    """Run a study of several sites with NVIDIA FLARE's simulator: a process for each site.

    Needs pip install 'rookery[flare]'. If a site crashes, the same command resumes from the last
    checkpoint. examples/04_deploy has a study and shows all four commands.

    Args:
        study: its Python file; python -c "help('rookery.remote.study')" says what it must contain.
        workspace: a folder for all sites and for the run.
    """
    print(f"The run is in {_jobs().simulate(study, workspace)}.")


def join(kit: tyro.conf.Positional[Path], study: tyro.conf.Positional[Path]) -> None:
    """Prepare a FLARE kit for a study. The server and every site do it for themselves.

    Copies the study into the kit and allows jobs to name rookery's classes. A job itself carries
    no code. Afterwards start the party with startup/start.sh in the kit.

    Args:
        kit: the folder that FLARE provisioned for the party, with startup and local in it.
        study: the study's Python file. Read it first: it is given the site's data.
    """
    _jobs().join(kit, study)
    print(f"{kit} is ready for {study.stem}. Start it with {kit}/startup/start.sh.")


def submit(study: tyro.conf.Positional[Path], kit: Path) -> None:
    """Run a study on parties that have been started, and wait for the end.

    The server's console shows which sites answer; the run is kept in the server's kit, in the
    folder rookery. If a site crashes the job fails, and the same command resumes from the last
    checkpoint.

    Args:
        study: its Python file; it says which sites take part.
        kit: the folder that FLARE provisioned for the user who submits.
    """
    print(f"Job {_jobs().submit(study, kit)} is done.")


def stop(kit: Path) -> None:
    """Shut down the server and all sites of a FLARE project.

    Args:
        kit: the folder that FLARE provisioned for the project's administrator.
    """
    _jobs().shut_down(kit)


def _jobs() -> ModuleType:
    # FLARE is an extra that the other commands do not need
    from rookery.remote.transports.flare import deploy

    return deploy
