# pyright: reportMissingImports=false
"""NVIDIA FLARE, its Collab API: parties that have a certificate each and trust no one's code.

Every party has this package and a copy of the study (:mod:`rookery.remote.study`). A job of FLARE
carries the study's name and nothing else, so that no site has to permit foreign code. Messages are
bytes, which FLARE packs as they are.

On one machine, with FLARE's simulator::

    flare.simulate("clinics", "workspace")

With parties that were provisioned and started as FLARE's manual has it, after each of them has
called ``join`` on its kit::

    flare.submit("clinics", "admin's kit")

A job that ends because a site was lost goes on from its checkpoint when it is submitted again.
"""

import json
import logging
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import equinox as eqx
from rich.console import Console

from rookery import _check
from rookery._types import Tree
from rookery.engines.engine import Program
from rookery.program.algorithm import AbstractAlgorithm
from rookery.remote.asking import TooFew
from rookery.remote.engine import Remote
from rookery.remote.plan import Plan
from rookery.remote.port import Failure, Port
from rookery.remote.study import JobFailed, Study, module_name
from rookery.remote.watched import Watched

try:
    from nvflare.apis.job_def import RunStatus
    from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST
    from nvflare.collab import collab
    from nvflare.collab.api.exceptions import CollabCallError, RunAborted
    from nvflare.collab.runtime.controller import CollabController
    from nvflare.collab.runtime.executor import CollabExecutor
    from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
    from nvflare.job_config.api import FedJob
    from nvflare.recipe import SimEnv
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "rookery.remote.flare needs NVIDIA FLARE: pip install 'rookery[flare]'"
    ) from error

ALLOWED = (
    "nvflare.collab.runtime.controller.CollabController",
    "nvflare.collab.runtime.executor.CollabExecutor",
    "rookery.remote.flare.Server",
    "rookery.remote.flare.Site",
)
"""What a site must allow a job to name, besides FLARE's own list."""

RUNS = "ROOKERY_RUNS"
"""The variable that tells a server where to keep runs; in its kit if it is not set."""

_PING_SECONDS = 5.0


class Flare(eqx.Module):
    """The clients of a FLARE job; to be used in the job's server program, as ``Server`` does.

    Args:
        sites: by site, the numbers of its clients.
        longest_job: seconds after which a job is given up that an asynchronous program has begun
            and does not wait for yet.
    """

    sites: Mapping[str, range]
    longest_job: float = 3600.0

    def __check_init__(self):
        _check.positive("Flare.longest_job", self.longest_job)

    def open(self, program: Program, algorithm: AbstractAlgorithm, state: Tree, plan: Plan) -> Port:
        """A port to the sites that take part in the job."""
        # two lines for every call are more than anyone reads, and take their time
        logging.getLogger("nvflare.collab.runtime.cell_dispatcher").setLevel(logging.WARNING)
        proxies = {proxy.name: proxy for proxy in collab.clients}
        return _Calls(self.sites, proxies, collab.context.is_aborted, self.longest_job)


class _Calls:
    """The port of :class:`Flare`: a thread for each client, which calls its site.

    FLARE does not say that a site is gone: each call to it would last until its deadline. So a site
    that has missed one and does not answer a ping is away, and is not asked before it does.
    """

    is_reliable = True  # TLS sees to it

    def __init__(
        self,
        sites: Mapping[str, range],
        proxies: Mapping[str, Any],
        is_aborted: Callable[[], bool],
        longest_job: float,
    ):
        self._site = {client: site for site, clients in sites.items() for client in clients}
        self._proxies, self._away = proxies, set(sites) - set(proxies)
        self._is_aborted, self._longest_job = is_aborted, longest_job
        self._outboxes = {client: queue.SimpleQueue() for client in self._site}
        self._arrivals: queue.SimpleQueue = queue.SimpleQueue()
        self._newest = dict.fromkeys(self._site, 0)  # by client, the number of its last message
        self._closed = threading.Event()
        for client in self._site:
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()
        threading.Thread(target=self._watch, daemon=True).start()

    def alive(self) -> frozenset[int]:
        return frozenset(c for c, site in self._site.items() if site not in self._away)

    def exchange(
        self, step: str, messages: Iterable[tuple[int, bytes]], wait_for: float
    ) -> Iterator[tuple[int, bytes | Failure]]:
        until = time.monotonic() + wait_for
        for client, message in messages:
            self._newest[client] += 1
            seconds = wait_for if wait_for > 0 else self._longest_job
            self._outboxes[client].put((self._newest[client], message, seconds))
        while True:
            try:
                left = max(until - time.monotonic(), 0)
                number, client, arrival = self._arrivals.get(timeout=left)
            except queue.Empty:
                return
            if self._is_aborted():
                raise TooFew("FLARE has ended the job, as it does when a site's process is gone.")
            if isinstance(arrival, bytes) or number == self._newest[client]:
                yield client, arrival

    def close(self) -> None:
        self._closed.set()
        for outbox in self._outboxes.values():
            outbox.put(None)

    def _carry(self, client: int) -> None:
        """Messages to a client, one after another, as it has to have them."""
        site, outbox = self._site[client], self._outboxes[client]
        while (sent := outbox.get()) is not None:
            number, message, seconds = sent
            if site in self._away:
                arrival = Failure(f"{site} is away")
            else:
                arrival = self._called(site, client, message, seconds)
            self._arrivals.put((number, client, arrival))

    def _called(self, site: str, client: int, message: bytes, seconds: float) -> bytes | Failure:
        try:
            reply = self._proxies[site](timeout=seconds).answer(client, message)
        except RunAborted as error:
            return Failure(str(error))
        except CollabCallError as error:
            if error.remote_traceback is None and not self._is_there(site):
                self._away.add(site)
            return Failure(f"{site}: {error.cause}")
        return reply if isinstance(reply, bytes) else Failure(f"{site} has sent no reply")

    def _is_there(self, site: str) -> bool:
        try:
            self._proxies[site](timeout=_PING_SECONDS).ping(b"")
        except (CollabCallError, RunAborted):
            return False
        return True

    def _watch(self) -> None:
        """Look after sites that are away; one that was only cut off comes back."""
        while not self._closed.wait(_PING_SECONDS):
            for site in self._away & set(self._proxies):
                if self._is_there(site):
                    self._away.discard(site)


class Server:
    """The part of a job that runs at the server.

    Args:
        study: name of the study's module.
    """

    def __init__(self, study: str):
        self.study = study

    @collab.main
    def main(self):
        """Run the study's ``main`` with the sites as its clients."""
        study = Study.read(self.study)
        runs = os.environ.get(RUNS) or Path(collab.workspace.get_root_dir()) / "rookery"
        directory = Path(runs) / study.name
        names = {c: f"{s}, client {c}" for s, clients in study.sites.items() for c in clients}
        console = Console(file=sys.stdout)
        transport = Watched(Flare(study.sites), console, names)
        console.print(f"The run is kept in {directory}.", soft_wrap=True)
        study.main(Remote(transport, study.policy), directory)


class Site:
    """The part of a job that runs at a site, with the site's data.

    Args:
        study: name of the study's module.
    """

    def __init__(self, study: str):
        self.study = study

    @collab.init
    def load(self):
        """Read the study and the site's own rows."""
        workers = Study.read(self.study).workers(collab.site_name, is_checked=False)
        self._workers = {client: (worker, threading.Lock()) for client, worker in workers.items()}

    @collab.publish
    def answer(self, client, message):
        """The reply of a client to the server; other sites have nothing to ask."""
        if collab.caller != "server":
            raise PermissionError(f"{collab.caller} is not the server")
        worker, lock = self._workers[client]
        with lock:  # a message that was given up and sent again waits for the first one
            return worker.answer(message)

    @collab.publish
    def ping(self, payload):
        """What came, as a sign that the site is there."""
        return payload


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
    program = "import sys; from rookery.remote import flare; flare._simulate(*sys.argv[1:])"
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
        print(f"Job {number} is submitted; the server's console shows how it goes.", flush=True)
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
    """Let jobs name the classes of this module, in the site's own settings."""
    local.mkdir(parents=True, exist_ok=True)
    own, given = local / "resources.json", local / "resources.json.default"
    source = own if own.exists() else given
    settings: dict[str, Any] = {"format_version": 2}
    if source.exists():
        settings = json.loads(source.read_text())
    allowed = settings.get("class_allow_list", list(DEFAULT_CLASS_ALLOW_LIST))
    settings["class_allow_list"] = [*dict.fromkeys([*allowed, *ALLOWED])]
    own.write_text(json.dumps(settings, indent=4))
