# pyright: reportMissingImports=false
"""NVIDIA FLARE, its Collab API: clients at parties that have a certificate each.

A job has a part at the server, which runs the study (:mod:`rookery.remote.study`), and a part at
each site, which answers for the site's clients. Messages are bytes, which FLARE packs as they are.
InFlight are made and submitted by :mod:`rookery.remote.transports.flare.deploy`; once they run, their processes need
this module alone.
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
from rookery.remote.engine import Remote
from rookery.remote.protocol.plan import Plan
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
        "rookery.remote.transports.flare.transport needs NVIDIA FLARE: pip install 'rookery[flare]'"
    ) from error

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
        check.positive("Flare.longest_job", self.longest_job)

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
                raise TooFewReplies(
                    "FLARE has ended the job, as it does when a site's process is gone."
                )
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
        transport = Monitored(Flare(study.sites), console, names)
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
