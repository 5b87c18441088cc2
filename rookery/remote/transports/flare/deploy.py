# pyright: reportMissingImports=false
"""NVIDIA FLARE jobs of a study: simulate, join, submit, list, abort, shut down.

Every party has this package and a copy of the study (:mod:`rookery.remote.study`), and trusts
nobody else's code. A job carries only the study's name. Joining takes the right to send code from
everybody, and a party loads only studies that it has joined and that have not changed since.

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rookery.remote.client.site_log import SiteLog
from rookery.remote.client.site_policy import SitePolicy, add_study, content_hash
from rookery.remote.study import JobFailed, Study, module_name
from rookery.remote.transports.flare.transport import (
    FOLDER,
    POLICY,
    RUNS,
    SIMULATED,
    Server,
    Site,
)

# isort: split
# after our own module, whose error says what to install if FLARE is missing
from nvflare.apis.job_def import RunStatus
from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST
from nvflare.collab.runtime.controller import CollabController
from nvflare.collab.runtime.executor import CollabExecutor
from nvflare.fuel.flare_api.api_spec import (
    AuthenticationError,
    AuthorizationError,
    InternalError,
    JobNotFound,
    NoConnection,
)
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
from nvflare.job_config.api import FedJob
from nvflare.recipe import SimEnv
from nvflare.security.security import COMMAND_CATEGORIES, CommandCategory

ALLOWED = (
    "nvflare.collab.runtime.controller.CollabController",
    "nvflare.collab.runtime.executor.CollabExecutor",
    "rookery.remote.transports.flare.transport.Server",
    "rookery.remote.transports.flare.transport.Site",
)
"""Classes that a site must allow jobs to name, in addition to FLARE's own list."""

WITHHELD = ("byoc", "server-predeployed-flwr", CommandCategory.SHELL_COMMANDS)
"""Rights that nobody has at a party that has joined: to send code, and to read its files."""

_RIGHTS = ("submit_job", "clone_job", *sorted({*COMMAND_CATEGORIES.values()}))
_CONNECT_SECONDS = 30.0


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
        SIMULATED: "1",
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


def join(kit: str | Path, study: str | Path, policy: str | Path | None = None) -> Path:
    """Prepare a party's startup kit for a study. Each party does this for itself: its consent.

    A party can join further studies, and one again that has changed, between two jobs.

    Args:
        kit: the party's startup kit, the folder with ``startup`` and ``local``.
        study: the file of the study's module; it is copied into the kit, and its hash is fixed.
        policy: the site's policy, a file to copy into the kit; None keeps the one that is there, or
            writes the default one.

    Returns:
        The kit's policy.
    """
    local, file = Path(kit) / "local", Path(study)
    if not local.is_dir():
        raise ValueError(f"{kit} is not a FLARE startup kit: it has no folder 'local'.")
    if not file.is_file():
        raise ValueError(f"there is no file {study}.")
    if not file.stem.isidentifier() or file.suffix != ".py":
        raise ValueError(f"a study must be a Python file whose name is an identifier, got {study}.")
    source, own = file.read_bytes(), local / FOLDER / POLICY
    own.parent.mkdir(exist_ok=True)
    if policy is not None:
        SitePolicy.read(policy)
        joined = SitePolicy.read(own).studies if own.exists() else {}
        shutil.copy(policy, own)
        for name, digest in joined.items():
            add_study(own, name, digest)
    elif not own.exists():
        is_server = (Path(kit) / "startup" / "fed_server.json").exists()
        own.write_text("[studies]\n" if is_server else SitePolicy().to_toml(), encoding="utf-8")
    add_study(own, file.stem, content_hash(source))
    (local / "custom").mkdir(exist_ok=True)
    (local / "custom" / file.name).write_bytes(source)
    _withhold(local)
    _allow(local)
    SiteLog(own.parent).append("joined", study=file.stem, hash=content_hash(source))
    return own


def submit(study: str | Path, kit: str | Path) -> str:
    """Submit a study to provisioned parties, and wait for its end; Ctrl-C aborts the job.

    Args:
        study: the study's module, by name or by file.
        kit: the startup kit of the submitting user; the folder has the user's name.

    Returns:
        The id of the job. Raises :class:`JobFailed` if it failed, or if sites are missing.
    """
    known = Study.read(module_name(study))
    with _session(kit) as session, tempfile.TemporaryDirectory() as folder:
        here = {client.name for client in session.get_connected_client_list()}
        if missing := [site for site in known.sites if site not in here]:
            raise JobFailed(
                f"study {known.name}: not connected: {', '.join(missing)}. Nothing was submitted. "
                "Start these sites (startup/start.sh in their kits) and submit again."
            )
        job = make_job(known.name, tuple(known.sites))
        job.export_job(folder)
        number = session.submit_job(str(Path(folder) / job.name))
        print(f"Job {number} is submitted; the server's console shows its progress.", flush=True)
        try:
            _, meta = session.monitor_job_and_return_job_meta(number)
        except KeyboardInterrupt:
            session.abort_job(number)
            print(f"Job {number} is aborted; its checkpoints are kept.", flush=True)
            raise
    status = meta["status"]
    if status != RunStatus.FINISHED_COMPLETED.value:
        raise JobFailed(
            f"study {known.name}: job {number} ended as {status}. See the logs of the server and "
            "the sites: a site that refused the study says so in its own. Once the cause is fixed, "
            "the same command resumes from the last checkpoint."
        )
    return number


def jobs(kit: str | Path) -> list[dict[str, str]]:
    """All jobs that the server knows, latest first: id, study, status, when and by whom.

    Args:
        kit: the startup kit of a user.
    """
    with _session(kit) as session:
        listed = session.list_jobs(detailed=True, reverse=True)
    keys = {
        "id": "job_id", "study": "name", "status": "status", "submitted": "submit_time_iso",
        "by": "submitter_name",
    }  # fmt: skip
    return [{name: str(job.get(key, "")) for name, key in keys.items()} for job in listed]


def abort(job: str, kit: str | Path) -> None:
    """Abort a job that is waiting or running; its checkpoints are kept.

    Args:
        job: the job's id, as :func:`submit` prints it.
        kit: the startup kit of a user who may.
    """
    with _session(kit) as session:
        try:
            session.abort_job(job)
        except JobNotFound:
            raise ValueError(f"the server knows no job {job!r}; see rookery flare-jobs.") from None


def shut_down(kit: str | Path) -> None:
    """Tell the server and all sites to stop; only a project administrator may.

    Does not wait: FLARE's own wait asks a server that is going down, and fails on a slow machine.

    Args:
        kit: the administrator's startup kit.
    """
    with _session(kit) as session:
        session.shutdown("all", wait=False)


@contextmanager
def _session(kit: str | Path) -> Iterator[Session]:
    """A user's session with the server; what FLARE refuses or cannot do is a ``JobFailed``."""
    if not (Path(kit) / "startup" / "fed_admin.json").is_file():
        raise ValueError(
            f"{kit} is not the startup kit of a user: it has no startup/fed_admin.json."
        )
    try:
        session = new_secure_session(Path(kit).resolve().name, str(kit), timeout=_CONNECT_SECONDS)
    except NoConnection as error:
        raise JobFailed(f"no connection to the server of {kit}: {error}. Is it started?") from None
    try:
        yield session
    except (AuthenticationError, AuthorizationError, InternalError, TimeoutError) as error:
        raise JobFailed(f"{kit}: {error}") from error
    finally:
        with suppress(Exception):  # the server may be down already, by this very session
            session.close()


def _withhold(local: Path) -> None:
    """Take the rights of ``WITHHELD`` from everybody: to send code, and to read a party's files."""
    own, given = local / "authorization.json", local / "authorization.json.default"
    source = own if own.exists() else given
    settings: dict[str, Any] = {"format_version": "1.0", "permissions": {}}  # FLARE's, from JSON
    if source.exists():
        settings = json.loads(source.read_text())
    for role, rights in settings["permissions"].items():
        rights = dict(rights) if isinstance(rights, dict) else dict.fromkeys(_RIGHTS, rights)
        shell = [r for r in rights if COMMAND_CATEGORIES.get(r) == CommandCategory.SHELL_COMMANDS]
        settings["permissions"][role] = rights | dict.fromkeys([*shell, *WITHHELD], "none")
    own.write_text(json.dumps(settings, indent=4))


def _allow(local: Path) -> None:
    """Add the classes of ``ALLOWED`` to the party's own settings; its log stays where it is."""
    local.mkdir(parents=True, exist_ok=True)
    own, given = local / "resources.json", local / "resources.json.default"
    source = own if own.exists() else given
    settings: dict[str, Any] = {"format_version": 2}  # FLARE's, from JSON
    if source.exists():
        settings = json.loads(source.read_text())
    allowed = settings.get("class_allow_list", list(DEFAULT_CLASS_ALLOW_LIST))
    settings["class_allow_list"] = [*dict.fromkeys([*allowed, *ALLOWED])]
    settings["class_list_enforcement_mode"] = "enforce"
    settings["allow_log_streaming"] = False
    own.write_text(json.dumps(settings, indent=4))
