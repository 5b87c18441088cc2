# pyright: reportMissingImports=false
"""NVIDIA FLARE jobs of a study: simulate, join, submit, shut down.

Every party has this package and a copy of the study (:mod:`rookery.remote.study`), and trusts
nobody else's code. A job carries only the study's name, so no site has to permit custom code.

On one machine, with FLARE's simulator::

    deploy.simulate("clinics", "workspace")

With parties that were provisioned and started as FLARE's manual describes, after each of them has
called ``join`` on its startup kit::

    deploy.submit("clinics", "path to the administrator's kit")

A job that failed because a site was lost resumes from its checkpoint when it is submitted again.
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
# after our own module, whose error says what to install if FLARE is missing
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
"""Classes that a site must allow jobs to name, in addition to FLARE's own list."""


def make_job(study: str, sites: Sequence[str], *, load_seconds: float = 600.0) -> FedJob:
    """The FLARE job of a study.

    Args:
        study: name of the study's module.
        sites: names of its sites.
        load_seconds: how long sites may take to load their rows.
    """
    job = FedJob(
        name=study.replace(".", "-"), min_clients=len(sites), mandatory_clients=list(sites)
    )
    job.set_app_packages(["rookery"])  # every party has it installed; no code is sent
    main = job.to_server(Server(study), id="_server")
    job.to_server(
        CollabController(server_obj_id=main, sync_task_timeout=load_seconds), id="controller"
    )
    for site in sites:
        client = job.to(Site(study), site, id="_client")
        job.to(CollabExecutor(client_obj_id=client), site, id="executor", tasks=["*"])
    return job


def simulate(study: str | Path, workspace: str | Path) -> Path:
    """Run a study on this machine with FLARE's simulator, one process per site.

    Args:
        study: the study's module, by name or by file.
        workspace: a folder for all parties; a run that it holds is resumed.

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
    # FLARE forks, which is unsafe in a process with JAX threads
    program = f"import sys; from {__name__} import run_simulator; run_simulator(*sys.argv[1:])"
    command = [sys.executable, "-c", program, known.name, str(root), *known.sites]
    if subprocess.run(command, env=environment).returncode:
        raise JobFailed(
            f"study {known.name}: FLARE's simulator failed. The logs of the server and the sites "
            f"are in {root / known.name}. Once the cause is fixed, the same command resumes from "
            "the last checkpoint."
        )
    return root / "runs" / known.name


def run_simulator(study: str, root: str, *sites: str) -> None:
    """Run FLARE's simulator in this process."""
    job = make_job(study, sites)
    _allow(Path(root) / job.name / "local")
    SimEnv(clients=list(sites), workspace_root=root).deploy(job)


def join(kit: str | Path, study: str | Path) -> None:
    """Prepare a party's startup kit for a study. Each party does this for itself: its consent.

    Args:
        kit: the party's startup kit, the folder with ``startup`` and ``local``.
        study: the file of the study's module; it is copied into the kit.
    """
    local, file = Path(kit) / "local", Path(study)
    if not local.is_dir():
        raise ValueError(f"{kit} is not a FLARE startup kit: it has no folder 'local'.")
    if not file.is_file():
        raise ValueError(f"there is no file {study}.")
    (local / "custom").mkdir(exist_ok=True)
    shutil.copy(file, local / "custom" / file.name)
    _allow(local)


def submit(study: str | Path, kit: str | Path) -> str:
    """Submit a study to provisioned parties, and wait for its end.

    Args:
        study: the study's module, by name or by file.
        kit: the startup kit of the submitting user; the folder has the user's name.

    Returns:
        The id of the job. Raises :class:`JobFailed` if it failed.
    """
    known = Study.read(module_name(study))
    with closing(_session(kit)) as session, tempfile.TemporaryDirectory() as folder:
        job = make_job(known.name, tuple(known.sites))
        job.export_job(folder)
        number = session.submit_job(str(Path(folder) / job.name))
        print(f"Job {number} is submitted; the server's console shows its progress.", flush=True)
        _, meta = session.monitor_job_and_return_job_meta(number)
    status = meta["status"]
    if status != RunStatus.FINISHED_COMPLETED.value:
        raise JobFailed(
            f"study {known.name}: job {number} ended as {status}. See the logs of the server and "
            "the sites. Once the cause is fixed, the same command resumes from the last checkpoint."
        )
    return number


def shut_down(kit: str | Path) -> None:
    """Stop the processes of the server and all sites; only a project administrator may.

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
    """Add the classes of ``ALLOWED`` to the site's own settings."""
    local.mkdir(parents=True, exist_ok=True)
    own, given = local / "resources.json", local / "resources.json.default"
    source = own if own.exists() else given
    settings: dict[str, Any] = {"format_version": 2}  # FLARE's, from JSON
    if source.exists():
        settings = json.loads(source.read_text())
    allowed = settings.get("class_allow_list", list(DEFAULT_CLASS_ALLOW_LIST))
    settings["class_allow_list"] = [*dict.fromkeys([*allowed, *ALLOWED])]
    own.write_text(json.dumps(settings, indent=4))
