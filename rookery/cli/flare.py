"""The ``rookery`` command's part for NVIDIA FLARE: simulate, join, submit, list, abort and stop."""

from pathlib import Path
from types import ModuleType

import tyro
from rich.console import Console
from rich.table import Column, Table


def simulate(study: tyro.conf.Positional[Path], workspace: Path = Path("runs/flare")) -> None:
    """Run a study of several sites with NVIDIA FLARE's simulator: a process for each site.

    Needs the extra flare. If a site crashes, the same command resumes from the last
    checkpoint. examples/04_deploy has a study and shows all commands. Sites of the simulator have
    no policy.

    Args:
        study: its Python file; python -c "help('rookery.remote.study')" says what it must contain.
        workspace: a folder for all sites and for the run.
    """
    print(f"The run is in {_jobs().simulate(study, workspace)}.")


def join(
    kit: tyro.conf.Positional[Path],
    study: tyro.conf.Positional[Path],
    policy: Path | None = None,
) -> None:
    """Prepare a FLARE kit for a study. The server and every site do it for themselves.

    Copies the study into the kit, fixes its content hash, and allows jobs to name rookery's
    classes. Afterwards nobody may send code to this party or read its files, its log is not
    streamed, and a study that was not joined or has changed is refused. A site gets a policy,
    local/rookery/policy.toml in the kit. A site that is running takes a further study at the next
    job; restart it after the first join.

    Args:
        kit: the folder that FLARE provisioned for the party, with startup and local in it.
        study: the study's Python file. Read it first: it is given the site's data.
        policy: a site policy to use instead of the default one.
    """
    file = _jobs().join(kit, study, policy)
    print(f"{kit} is ready for {study.stem}; its policy: {file}.")
    print(f"Start it with {kit}/startup/start.sh.")


def submit(study: tyro.conf.Positional[Path], kit: Path) -> None:
    """Run a study on parties that have been started, and wait for the end. Ctrl-C aborts the job.

    Sites that are missing are named at once. The server's console shows which sites answer; the run
    is kept in the server's kit, in the folder rookery. If a site crashes the job fails, and the
    same command resumes from the last checkpoint.

    Args:
        study: its Python file; it says which sites take part.
        kit: the folder that FLARE provisioned for the user who submits.
    """
    print(f"Job {_jobs().submit(study, kit)} is done.")


def jobs(kit: Path) -> None:
    """List the jobs of a FLARE server, latest first.

    Args:
        kit: the folder that FLARE provisioned for a user.
    """
    others = [Column(name, overflow="fold") for name in ("study", "status", "submitted", "by")]
    table = Table(Column("id", min_width=36), *others)
    for job in _jobs().jobs(kit):
        table.add_row(job["id"], job["study"], job["status"], job["submitted"], job["by"])
    Console().print(table)


def abort(job: tyro.conf.Positional[str], kit: Path) -> None:
    """Abort a job that is waiting or running. Its checkpoints are kept: submitting resumes.

    Args:
        job: its id, as flare-submit and flare-jobs print it.
        kit: the folder that FLARE provisioned for a user who may.
    """
    _jobs().abort(job, kit)
    print(f"Job {job} is aborted.")


def stop(kit: Path) -> None:
    """Shut down the server and all sites of a FLARE project.

    Args:
        kit: the folder that FLARE provisioned for the project's administrator.
    """
    _jobs().shut_down(kit)
    print("The server and the sites are stopping; their processes end within half a minute.")


def _jobs() -> ModuleType:
    # FLARE is an extra that the other commands do not need
    from rookery.remote.transports.flare import deploy

    return deploy
