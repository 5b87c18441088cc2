# pyright: reportMissingImports=false
"""InFlight of NVIDIA FLARE: make one of a study, simulate it, have parties join, submit it, stop.

Every party has this package and a copy of the study (:mod:`rookery.remote.study`), and trusts no
one's code. A job carries the study's name and nothing else, so that no site has to permit foreign
code.

On one machine, with FLARE's simulator::

    flare_jobs.simulate("clinics", "workspace")

With parties that were provisioned and started as FLARE's manual has it, after each of them has
called ``join`` on its kit::

    flare_jobs.submit("clinics", "admin's kit")

A job that ends because a site was lost goes on from its checkpoint when it is submitted again.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from rookery.remote.study import JobFailed, Study, module_name
from rookery.remote.transports.flare.transport import RUNS, Server, Site

# isort: split
# after our own module, which says what to install where FLARE is missing
from nvflare.apis.job_def import RunStatus
from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST
from nvflare.collab.runtime.controller import CollabController
from nvflare.collab.runtime.executor import CollabExecutor
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
from nvflare.job_config.api import FedJob
from nvflare.recipe import SimEnv

ALLOWED = (
    "nvflare.collab.runtime.controller.CollabController",
    "nvflare.collab.runtime.executor.CollabExecutor",
    "rookery.remote.transports.flare.transport.Server",
    "rookery.remote.transports.flare.transport.Site",
)
"""What a site must allow a job to name, besides FLARE's own list."""


def make_job(study: str, sites: Sequence[str], *, load_seconds: float = 600.0) -> FedJob:
    """The job of a study.

    Args:
        study: name of the study's module.
        sites: names of its sites.
        load_seconds: how long sites may take to read their rows.
    """
    job = FedJob(
        name=study.replace(".", "-"), min_clients=len(sites), mandatory_clients=list(sites)
    )
    job.set_app_packages(["rookery"])  # every party has its own, and no code travels
    main = job.to_server(Server(study), id="_server")
    job.to_server(
        CollabController(server_obj_id=main, sync_task_timeout=load_seconds), id="controller"
    )
    for site in sites:
        client = job.to(Site(study), site, id="_client")
        job.to(CollabExecutor(client_obj_id=client), site, id="executor", tasks=["*"])
    return job


def simulate(study: str | Path, workspace: str | Path) -> Path:
    """Run a study on this machine, with FLARE's simulator: a process for each site.

    Args:
        study: the study's module, by name or by file.
        workspace: a folder for all parties; what it holds of an earlier run is gone on with.

    Returns:
        The directory of the run.
    """
    known = Study.read(module_name(study))
    root = Path(workspace).resolve()
    environment = {
        **os.environ,
        RUNS: str(root / "runs"),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    # FLARE forks, which a process in which JAX has threads must not do
    program = "import sys; from rookery.remote.transports.flare.deploy import _simulate; _simulate(*sys.argv[1:])"
    command = [sys.executable, "-c", program, known.name, str(root), *known.sites]
    if subprocess.run(command, env=environment).returncode:
        raise JobFailed(
            "FLARE's simulator has failed; the logs of the server and the sites are in "
            f"{root / known.name}. When that is mended, the same command goes on from the last "
            "checkpoint."
        )
    return root / "runs" / known.name


def _simulate(study: str, root: str, *sites: str) -> None:
    job = make_job(study, sites)
    _allow(Path(root) / job.name / "local")
    SimEnv(clients=list(sites), workspace_root=root).deploy(job)


def join(kit: str | Path, study: str | Path) -> None:
    """Make a party's kit ready for a study: the party's own decision, and its only one.

    Args:
        kit: the party's startup kit, the folder that holds ``startup`` and ``local``.
        study: the file of the study's module, which is copied into the kit.
    """
    local, file = Path(kit) / "local", Path(study)
    if not local.is_dir():
        raise ValueError(f"{kit} is not a startup kit of FLARE: it has no folder 'local'.")
    if not file.is_file():
        raise ValueError(f"there is no file {study}.")
    (local / "custom").mkdir(exist_ok=True)
    shutil.copy(file, local / "custom" / file.name)
    _allow(local)


def submit(study: str | Path, kit: str | Path) -> str:
    """Have provisioned parties carry out a study, and wait until they have.

    Args:
        study: the study's module, by name or by file.
        kit: the startup kit of the user who submits; its folder has the user's name.

    Returns:
        The number of the job; an error is raised if it failed.
    """
    known = Study.read(module_name(study))
    with closing(_session(kit)) as session, tempfile.TemporaryDirectory() as folder:
        job = make_job(known.name, tuple(known.sites))
        job.export_job(folder)
        number = session.submit_job(str(Path(folder) / job.name))
        print(f"Run {number} is submitted; the server's console shows how it goes.", flush=True)
        _, about = session.monitor_job_and_return_job_meta(number)
    status = about["status"]
    if status != RunStatus.FINISHED_COMPLETED.value:
        raise JobFailed(
            f"job {number} ended as {status}. The logs of the server and the sites say why; when "
            "that is mended, the same command goes on from the last checkpoint."
        )
    return number


def shut_down(kit: str | Path) -> None:
    """End the processes of the server and all sites, as a project's administrator may.

    Args:
        kit: the administrator's startup kit.
    """
    with closing(_session(kit)) as session:
        session.shutdown("all")


def _session(kit: str | Path) -> Session:
    if not (Path(kit) / "startup" / "fed_admin.json").is_file():
        raise ValueError(
            f"{kit} is not the startup kit of a user: it has no startup/fed_admin.json."
        )
    return new_secure_session(Path(kit).resolve().name, str(kit))


def _allow(local: Path) -> None:
    """Let jobs name the classes of ``ALLOWED``, in the site's own settings."""
    local.mkdir(parents=True, exist_ok=True)
    own, given = local / "resources.json", local / "resources.json.default"
    source = own if own.exists() else given
    settings: dict[str, Any] = {"format_version": 2}
    if source.exists():
        settings = json.loads(source.read_text())
    allowed = settings.get("class_allow_list", list(DEFAULT_CLASS_ALLOW_LIST))
    settings["class_allow_list"] = [*dict.fromkeys([*allowed, *ALLOWED])]
    own.write_text(json.dumps(settings, indent=4))
