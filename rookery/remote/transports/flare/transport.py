# pyright: reportMissingImports=false
"""Clients at NVIDIA FLARE sites, each with a certificate, through FLARE's Collab API.

A job has a part at the server, which runs the study (:mod:`rookery.remote.study`), and a part at
each site, which answers for the site's clients. Messages are bytes, which FLARE sends unchanged.
:mod:`rookery.remote.transports.flare.deploy` makes and submits jobs; the processes of a running job
need only this module.
"""

import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
from rich.console import Console

from rookery import check
from rookery.engines.engine import Program
from rookery.program.algorithm import AbstractAlgorithm
from rookery.remote.client.enforcer import Enforcer
from rookery.remote.client.site_log import SiteLog
from rookery.remote.client.site_policy import REFUSED, Refused, SitePolicy
from rookery.remote.engine import Remote
from rookery.remote.protocol.plan import Plan
from rookery.remote.protocol.wire import Parts, joined
from rookery.remote.server.requests import TooFewReplies
from rookery.remote.study import Study
from rookery.remote.transports.monitor import Monitored
from rookery.remote.transports.port import Failure, Port
from rookery.types import Tree

try:
    from nvflare.collab import collab
    from nvflare.collab.api.exceptions import CollabCallError, RunAborted
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "NVIDIA FLARE is not installed: pip install -e '.[flare]' in rookery's checkout."
    ) from error

RUNS = "ROOKERY_RUNS"
"""Environment variable: the server's folder for runs; inside its kit if not set."""

SIMULATED = "ROOKERY_SIMULATED"
"""Environment variable of the simulator's processes: studies need not be joined there."""

FOLDER, POLICY = "rookery", "policy.toml"
"""The folder of a kit's ``local`` with a party's policy, key and log; and its policy."""

_PING_SECONDS = 5.0


class Flare(eqx.Module):
    """The clients of a FLARE job.

    Only the job's server program can use it, as :class:`Server` does::

        Remote(Flare({"clinic-1": range(0, 1), "clinic-2": range(1, 2)}), Policy())

    Args:
        sites: by site, the numbers of its clients.
        longest_job: seconds after which FLARE gives up a call that an asynchronous program has sent
            ahead and does not wait for yet.
    """

    sites: Mapping[str, range]
    longest_job: float = 3600.0

    def __check_init__(self):
        check.positive("Flare.longest_job", self.longest_job)

    def open(self, program: Program, algorithm: AbstractAlgorithm, state: Tree, plan: Plan) -> Port:
        """A port to the sites of the job."""
        # FLARE logs two lines per call, which is slow
        logging.getLogger("nvflare.collab.runtime.cell_dispatcher").setLevel(logging.WARNING)
        proxies = {proxy.name: proxy for proxy in collab.clients}
        return _Calls(self.sites, proxies, collab.context.is_aborted, self.longest_job)


class _Calls:
    """The port of :class:`Flare`: a thread per client, which calls the client's site.

    FLARE does not report a lost site: every call to it would last until its deadline. So a site
    that misses a deadline and does not answer a ping is marked unreachable, and is not called until
    it answers one. Pings are the heartbeat of unreachable sites.
    """

    is_reliable = True  # by TLS

    def __init__(
        self,
        sites: Mapping[str, range],
        proxies: Mapping[str, Any],  # FLARE's, without types for a site's methods
        is_aborted: Callable[[], bool],
        longest_job: float,
    ):
        self._site = {client: site for site, clients in sites.items() for client in clients}
        self._proxies, self._unreachable = proxies, set(sites) - set(proxies)
        self._is_aborted, self._longest_job = is_aborted, longest_job
        self._outboxes = {client: queue.SimpleQueue() for client in self._site}
        self._arrivals: queue.SimpleQueue = queue.SimpleQueue()
        self._newest = dict.fromkeys(self._site, 0)  # by client, number of its last message
        self._closed = threading.Event()
        for client in self._site:
            threading.Thread(target=self._deliver, args=(client,), daemon=True).start()
        threading.Thread(target=self._heartbeat, daemon=True).start()

    def alive(self) -> frozenset[int]:
        return frozenset(c for c, site in self._site.items() if site not in self._unreachable)

    def exchange(
        self, step: str, messages: Iterable[tuple[int, Parts]], wait_for: float
    ) -> Iterator[tuple[int, bytes | Failure]]:
        until = time.monotonic() + wait_for
        for client, message in messages:
            self._newest[client] += 1
            seconds = wait_for if wait_for > 0 else self._longest_job
            self._outboxes[client].put((self._newest[client], joined(message), seconds))
        while True:
            try:
                left = max(until - time.monotonic(), 0)
                number, client, arrival = self._arrivals.get(timeout=left)
            except queue.Empty:
                return
            if self._is_aborted():
                raise TooFewReplies(
                    "FLARE has ended the job, as it does when a site's process dies. See the "
                    "site's log."
                )
            if isinstance(arrival, bytes) or number == self._newest[client]:
                yield client, arrival

    def close(self) -> None:
        self._closed.set()
        for outbox in self._outboxes.values():
            outbox.put(None)

    def _deliver(self, client: int) -> None:
        """Send a client its messages one after another: it must get them in order."""
        site, outbox = self._site[client], self._outboxes[client]
        while (sent := outbox.get()) is not None:
            number, message, seconds = sent
            if site in self._unreachable:
                arrival = Failure(f"site {site} is unreachable")
            else:
                arrival = self._call(site, client, message, seconds)
            self._arrivals.put((number, client, arrival))

    def _call(self, site: str, client: int, message: bytes, seconds: float) -> bytes | Failure:
        try:
            reply = self._proxies[site](timeout=seconds).answer(client, message)
        except RunAborted as error:
            return Failure(str(error))
        except CollabCallError as error:
            if error.remote_traceback is None and not self._answers_ping(site):
                self._unreachable.add(site)
            return Failure(f"site {site}: {error.cause}")
        return reply if isinstance(reply, bytes) else Failure(f"site {site} sent no reply")

    def _answers_ping(self, site: str) -> bool:
        try:
            self._proxies[site](timeout=_PING_SECONDS).ping(b"")
        except (CollabCallError, RunAborted):
            return False
        return True

    def _heartbeat(self) -> None:
        """Ping unreachable sites; a site that was only disconnected comes back."""
        while not self._closed.wait(_PING_SECONDS):
            for site in self._unreachable & set(self._proxies):
                if self._answers_ping(site):
                    self._unreachable.discard(site)


class _Part:
    """A part of a job.

    Args:
        study: name of the study's module.
    """

    def __init__(self, study: str):
        self.study = study

    def _study(self) -> tuple[Study, Enforcer | None]:
        """The study, if this party has joined it; and what enforces the party's policy."""
        if os.environ.get(SIMULATED):
            return Study.read(self.study), None
        local = Path(collab.workspace.get_root_dir()) / "local"
        policy = SitePolicy.read(local / FOLDER / POLICY)
        study = Study.joined(self.study, policy, local / "custom")
        return study, Enforcer(policy, local / FOLDER)


class Server(_Part):
    """The part of a job that runs at the server."""

    @collab.main
    def main(self):
        """Run the study's ``main`` with the sites as its clients."""
        study, _ = self._study()
        runs = os.environ.get(RUNS) or Path(collab.workspace.get_root_dir()) / "rookery"
        directory = Path(runs) / study.name
        console = Console(file=sys.stdout)
        transport = Monitored(Flare(study.sites), console, study.client_names)
        console.print(f"Run directory: {directory}", soft_wrap=True)
        study.main(Remote(transport, study.policy, secure=study.secure), directory)


class Site(_Part):
    """The part of a job that runs at a site, with the site's data."""

    @collab.init
    def load(self):
        """Read the study and load the site's own rows."""
        self._at_the_site(self._load)

    @collab.publish
    def answer(self, client, message):
        """The reply of a client. Only the server may call it."""
        if collab.caller != "server":
            raise PermissionError(f"only the server may call a client, not {collab.caller}")
        return self._at_the_site(self._answer, client, message)

    @collab.publish
    def ping(self, payload):
        """The payload: the site is alive."""
        return payload

    def _load(self) -> None:
        study, enforcer = self._study()
        workers = study.workers(collab.site_name, is_checked=False, enforcer=enforcer)
        self._workers = {client: (worker, threading.Lock()) for client, worker in workers.items()}

    def _answer(self, client: int, message: bytes) -> bytes:
        worker, lock = self._workers[client]
        with lock:  # after a timeout the same message may come again while the first is running
            return worker.answer(message)

    def _at_the_site(self, function: Callable, *arguments: object) -> bytes | None:
        """Call a function; of an error only its kind and a reference leave the site.

        FLARE sends the text and the traceback of whatever is raised to the server. In the
        simulator, where all is one user's, errors are raised as they are.
        """
        if os.environ.get(SIMULATED):
            return function(*arguments)
        try:
            return function(*arguments)
        except Exception as error:
            told = self._logged(error)
        raise SiteError(told)  # outside: otherwise the first error would be its context

    def _logged(self, error: Exception) -> str:
        """What the server may know of an error, whose text goes to the site's log."""
        try:
            log = SiteLog(Path(collab.workspace.get_root_dir()) / "local" / FOLDER)
            if isinstance(error, Refused):
                log.append("refused", step=self.study, reason=str(error))
                return f"{REFUSED}{error}"
            return log.error(self.study, error)
        except OSError:
            return f"{type(error).__name__} at the site, which cannot write its log"


class SiteError(RuntimeError):
    """What the server may know of an error at a site."""
