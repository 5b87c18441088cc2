"""NVIDIA FLARE: its simulator, and a real deployment with certificates, on this machine alone."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed; make test-flare")

from nvflare.collab.api.exceptions import (  # pyright: ignore[reportMissingImports]
    CollabCallError,
    RunAborted,
)
from nvflare.fuel.flare_api.api_spec import JobNotFound  # pyright: ignore[reportMissingImports]

import rookery as rk
from rookery.cli.main import main
from rookery.remote import SitePolicy
from rookery.remote.client import site_log
from rookery.remote.server.requests import TooFewReplies
from rookery.remote.study import JobFailed
from rookery.remote.transports.flare import deploy, transport
from rookery.remote.transports.port import Failure
from rookery.runner.checkpoint import load_all

HERE = Path(__file__).parent
EXAMPLE = HERE.parent.parent / "examples" / "04_deploy"
LONG = 900.0  # seconds for one command, on a busy machine

ALGORITHMS = ["FedNest", "FedMBO", "Scaffold", "AFBO"]
if os.environ.get("ROOKERY_FLARE") == "all":  # its steps take long to compile
    ALGORITHMS.append("FedMSA")


@pytest.fixture
def study(request, monkeypatch):
    """The study of one algorithm, here and in every process that is started."""
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("ROOKERY_TEST_ALGORITHM", request.param)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    sys.modules.pop("flare_study", None)
    import flare_study

    assert type(flare_study.algorithm).__name__ == request.param
    yield flare_study
    sys.modules.pop("flare_study", None)


@pytest.mark.parametrize("study", ALGORITHMS, indirect=True)
def test_the_simulator_gives_the_compiled_numbers(study, tmp_path):
    want = study.main(rk.Compiled(), tmp_path / "compiled", study.EVERYONE)
    directory = deploy.simulate("flare_study", tmp_path / "flare")
    newest = load_all(directory / "checkpoints", want.state)[0][0]
    assert newest.round == want.rounds == 3
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, 1e-12, 1e-12), newest.state, want.state
    )
    assert newest.ledger == want.ledger
    assert not (directory / "events.jsonl").exists()


@pytest.fixture
def hidden(monkeypatch):
    """Secure aggregation, here and in every process that is started."""
    monkeypatch.setenv("ROOKERY_TEST_SECURE", "1")


@pytest.mark.parametrize("study", ["FedNest"], indirect=True)
def test_secure_means_in_the_simulator_differ_by_rounding_alone(hidden, study, tmp_path):
    want = study.main(rk.Compiled(), tmp_path / "compiled", study.EVERYONE)
    directory = deploy.simulate("flare_study", tmp_path / "flare")
    newest = load_all(directory / "checkpoints", want.state)[0][0]
    difference = jax.tree.map(lambda a, b: abs(a - b).max(), newest.state, want.state)
    assert 0 < max(map(float, jax.tree.leaves(difference))) < 1e-8  # 0 would be the plain mean
    assert newest.ledger == want.ledger
    (event,) = (directory / "events.jsonl").read_text().splitlines()
    assert "secure aggregation hides" in event


class Proxy:
    """A site as FLARE's server sees it, with faults on demand."""

    def __init__(self, name):
        self.name, self.calls, self.is_dead, self.error = name, 0, False, None

    def __call__(self, timeout):
        self.timeout = timeout
        return self

    def answer(self, client, message):
        self.calls += 1
        if self.error is not None:
            raise self.error
        if self.is_dead:
            time.sleep(self.timeout)
            raise CollabCallError(self.name, "answer", TimeoutError("timed out"))
        return b"%d:" % client + message

    def ping(self, payload):
        if self.is_dead:
            raise CollabCallError(self.name, "ping", TimeoutError("timed out"))
        return payload


@pytest.fixture
def port(monkeypatch):
    monkeypatch.setattr(transport, "_PING_SECONDS", 0.05)
    proxies = {name: Proxy(name) for name in ("a", "b")}
    aborted = []
    sites = {"a": range(0, 2), "b": range(2, 3), "absent": range(3, 4)}
    calls = transport._Calls(sites, proxies, lambda: bool(aborted), longest_job=0.5)
    yield calls, proxies, aborted
    calls.close()


def exchange(calls, clients, wait_for=0.4):
    """What has come by client, without waiting for the deadline once all have answered."""
    got = {}
    for client, arrival in calls.exchange("step", [(c, [b"x"]) for c in clients], wait_for):
        got[client] = arrival
        if len(got) == len(clients):
            break
    return got


def test_a_message_goes_to_its_site_and_the_reply_comes_back(port):
    calls, proxies, _ = port
    got = exchange(calls, [0, 1, 2, 3])
    assert [got[c] for c in (0, 1, 2)] == [b"0:x", b"1:x", b"2:x"]
    assert got[3] == Failure("site absent is unreachable")
    assert calls.alive() == {0, 1, 2}
    assert (proxies["a"].calls, proxies["b"].calls) == (2, 1)


def test_a_dead_site_costs_its_deadline_once_and_is_asked_again_when_it_is_back(port):
    calls, proxies, _ = port
    proxies["b"].is_dead = True
    assert not isinstance(exchange(calls, [0, 2]).get(2), bytes)
    time.sleep(0.2)
    assert calls.alive() == {0, 1}
    began = time.monotonic()
    assert exchange(calls, [0, 2], wait_for=20)[2] == Failure("site b is unreachable")
    assert time.monotonic() - began < 5
    proxies["b"].is_dead = False
    deadline = time.monotonic() + 30
    while 2 not in calls.alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert exchange(calls, [2]) == {2: b"2:x"}


def test_a_site_that_is_only_slow_is_not_given_up(port):
    calls, proxies, _ = port
    proxies["b"].is_dead = True
    proxies["b"].ping = lambda payload: payload
    assert not isinstance(exchange(calls, [2], wait_for=0.1).get(2), bytes)
    time.sleep(0.2)
    assert calls.alive() == {0, 1, 2}


def test_an_error_at_a_site_is_told_and_the_site_stays(port):
    calls, proxies, _ = port
    proxies["a"].error = CollabCallError("a", "answer", "KeyError: 1", "KeyError", "traceback")
    assert exchange(calls, [1])[1] == Failure("site a: KeyError: 1")
    assert calls.alive() == {0, 1, 2}
    proxies["a"].error = None
    proxies["a"].answer = lambda client, message: ["not bytes"]
    assert exchange(calls, [1])[1] == Failure("site a sent no reply")


def test_without_time_messages_are_sent_and_replies_come_later(port):
    calls, _, _ = port
    list(calls.exchange("step", [(0, [b"x"]), (0, [b"y"])], 0.0))
    time.sleep(0.2)
    assert list(calls.exchange("step", [], 0.0)) == [(0, b"0:x"), (0, b"0:y")]


def test_a_job_that_flare_has_ended_stops_the_run(port):
    calls, proxies, aborted = port
    aborted.append(True)
    proxies["a"].error = RunAborted("over")
    with pytest.raises(TooFewReplies, match="FLARE has ended the job"):
        exchange(calls, [0])


def test_what_is_no_kit_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no folder 'local'"):
        deploy.join(tmp_path, EXAMPLE / "clinics.py")
    with pytest.raises(ValueError, match=r"no startup/fed_admin\.json"):
        deploy.shut_down(tmp_path)
    (tmp_path / "local").mkdir()
    with pytest.raises(ValueError, match="no file"):
        deploy.join(tmp_path, tmp_path / "study.py")


def test_joining_allows_our_classes_and_takes_the_right_to_send_code_and_to_read_files(tmp_path):
    local = tmp_path / "local"
    local.mkdir()
    (local / "resources.json.default").write_text(
        '{"a": 1, "class_allow_list": ["own.Class"], "allow_log_streaming": true}'
    )
    (local / "authorization.json.default").write_text(
        '{"permissions": {"project_admin": "any", "lead": {"byoc": "any", "cat": "o:site"}}}'
    )
    for _ in range(2):
        deploy.join(tmp_path, EXAMPLE / "clinics.py")
    settings = json.loads((local / "resources.json").read_text())
    assert settings == {
        "a": 1,
        "class_allow_list": ["own.Class", *deploy.ALLOWED],
        "class_list_enforcement_mode": "enforce",
        "allow_log_streaming": False,
    }
    roles = json.loads((local / "authorization.json").read_text())["permissions"]
    withheld = dict.fromkeys(deploy.WITHHELD, "none")
    assert roles["lead"] == {"cat": "none", **withheld}
    assert roles["project_admin"].items() >= withheld.items()
    assert roles["project_admin"]["submit_job"] == roles["project_admin"]["operate"] == "any"


def test_a_site_gets_the_default_policy_or_its_own_and_keeps_what_it_has_joined(tmp_path):
    local = tmp_path / "local"
    local.mkdir()
    file = deploy.join(tmp_path, EXAMPLE / "clinics.py")
    assert SitePolicy.read(file) == replace(SitePolicy(), studies=SitePolicy.read(file).studies)
    other = tmp_path / "other.py"
    other.write_text("")
    deploy.join(tmp_path, other, EXAMPLE / "clinic.toml")
    policy = SitePolicy.read(file)
    assert set(policy.studies) == {"clinics", "other"} and policy.min_rows == 50
    source = (EXAMPLE / "clinics.py").read_bytes()
    assert policy.source_of("clinics", local / "custom") == source
    with pytest.raises(ValueError, match="no site policy"):
        deploy.join(tmp_path, other, tmp_path / "nowhere.toml")
    with pytest.raises(ValueError, match="identifier"):
        deploy.join(tmp_path, file)


def test_the_server_has_no_policy_of_a_site(tmp_path):
    for folder in ("local", "startup"):
        (tmp_path / folder).mkdir()
    (tmp_path / "startup" / "fed_server.json").write_text("{}")
    text = deploy.join(tmp_path, EXAMPLE / "clinics.py").read_text()
    assert "clinics" in text and "noise" not in text


class Console:
    """The session of a user, with one job and some sites."""

    def __init__(self, sites=("clinic-1", "clinic-2")):
        self.sites, self.aborted, self.is_closed = sites, [], False

    def get_connected_client_list(self):
        return [SimpleNamespace(name=site) for site in self.sites]

    def submit_job(self, folder):
        assert (Path(folder) / "meta.json").exists()
        return "job-1"

    def monitor_job_and_return_job_meta(self, number):
        raise KeyboardInterrupt

    def abort_job(self, number):
        if number != "job-1":
            raise JobNotFound("no")
        self.aborted.append(number)

    def list_jobs(self, **_):
        return [{"job_id": "job-1", "name": "clinics", "status": "RUNNING"}]

    def close(self):
        self.is_closed = True
        raise ConnectionError("the server is down")  # as after a shutdown


@pytest.fixture
def console(tmp_path, monkeypatch):
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup" / "fed_admin.json").write_text("{}")
    console = Console()
    monkeypatch.setattr(deploy, "new_secure_session", lambda *_, **__: console)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield console
    assert console.is_closed


def test_missing_sites_are_named_at_once(console, tmp_path):
    console.sites = ("clinic-2",)
    with pytest.raises(JobFailed, match="not connected: clinic-1"):
        deploy.submit(EXAMPLE / "clinics.py", tmp_path)


def test_ctrl_c_aborts_the_job(console, tmp_path, capsys):
    with pytest.raises(KeyboardInterrupt):
        deploy.submit(EXAMPLE / "clinics.py", tmp_path)
    assert console.aborted == ["job-1"] and "job-1 is aborted" in capsys.readouterr().out


def test_jobs_are_listed_and_aborted(console, tmp_path, capsys):
    main(["flare-jobs", "--kit", str(tmp_path)])
    main(["flare-abort", "job-1", "--kit", str(tmp_path)])
    said = capsys.readouterr().out
    assert "RUNNING" in said and "clinics" in said and console.aborted == ["job-1"]
    with pytest.raises(ValueError, match="no job 'other'"):
        deploy.abort("other", tmp_path)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Deployment:
    """A copy of the example, and its README's commands, with ports of its own."""

    def __init__(self, folder: Path):
        self.folder = folder
        left_over = (
            "ws", "elsewhere", "kits", "*.pid", "*.log", "*.joined", ".venv*", "runs",
            "__pycache__",
        )  # fmt: skip
        shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns(*left_over))
        for old in ("18002", "18003"):
            new = str(free_port())
            for name in ("project.yml", "README.md"):
                text = (folder / name).read_text()
                (folder / name).write_text(text.replace(old, new))
        readme = (folder / "README.md").read_text()
        self.sections = {}
        for section in readme.split("\n## ")[1:]:
            blocks = [block.split("```")[0] for block in section.split("```sh\n")[1:]]
            self.sections[section.split("\n")[0]] = "\n".join(blocks)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, "JAX_PLATFORMS": "cpu", "COLUMNS": "200"}

    def do(self, number: int) -> str:
        """The commands of one section."""
        (commands,) = [c for name, c in self.sections.items() if name.startswith(f"{number}.")]
        return self.sh(commands)

    def sh(self, commands: str, *, is_fine: bool = True) -> str:
        """What commands print."""
        done = subprocess.run(
            ["bash", "-eu", "-c", commands], cwd=self.folder, env=self.environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LONG,
        )  # fmt: skip
        assert (done.returncode == 0) == is_fine, done.stdout + self.log("localhost")[-3000:]
        return done.stdout

    def log(self, party: str) -> str:
        file = self.folder / f"{party}.log"
        return file.read_text() if file.exists() else ""

    def kit(self, party: str) -> Path:
        return self.folder / "kits" / party

    @property
    def run(self) -> Path:
        return self.folder / "kits" / "localhost" / "rookery" / "clinics"

    def processes(self) -> list[int]:
        return [int(file.read_text()) for file in self.folder.glob("*.pid")]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def children(pid: int) -> list[int]:
    """Of all its threads."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for some in lists for child in some.read_text().split()]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    """Server and two clinics with certificates; all of them are stopped again."""
    it = Deployment(tmp_path_factory.mktemp("deploy") / "example")
    it.do(2)
    # a server that would let anything pass: the sites must refuse by themselves
    rights = it.kit("localhost") / "local" / "authorization.json"
    rights.write_text('{"format_version": "1.0", "permissions": {"project_admin": "any"}}')
    try:
        it.do(3)
        yield it
    finally:
        for pid in it.processes():
            for one in [*(children(pid) if is_running(pid) else []), pid]:
                if is_running(one):
                    os.kill(one, signal.SIGKILL)


def test_the_readme_from_the_first_command_to_the_last(deployment):
    """Three parties with certificates; a stranger; a crash; the same numbers; and all stop."""
    deployment.do(1)
    rows = [json.loads(line) for line in deployment.do(4).splitlines() if line.startswith("{")]
    simulated = deployment.folder / "runs"
    for directory in (simulated / "clinics", simulated / "flare" / "runs" / "clinics"):
        last = json.loads((directory / "history.jsonl").read_text().splitlines()[-1])
        assert last.keys() == rows[-1].keys() and last["round"] == 20
        assert list(last.values()) == pytest.approx(list(rows[-1].values()), rel=1e-12)
    assert "2 of 2 clients alive" in deployment.log("localhost")
    assert "  clinic-2: " in deployment.log("localhost")
    assert (simulated / "report" / "report.html").stat().st_size > 10_000

    said = deployment.do(5)
    assert "no certificate: refused" in said
    assert "elsewhere/project/prod_00/clinic-2: refused" in said
    assert "kits/clinic-2: accepted" in said
    assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" in said and "CERTIFICATE_VERIFY_FAILED" in said

    said = deployment.do(6)
    for what in ("a job with code", "a module that nobody joined", "a study that has changed"):
        assert f"{what}: refused" in said
    assert "BYOC not permitted" in said
    assert "study 'clinics' has changed" in said and "study 'this' was not joined" in said
    no_text_of_an_error_reaches_the_server(deployment)
    a_site_that_is_killed(deployment)

    assert "Traceback" not in deployment.do(7)
    until = time.monotonic() + 120
    while (left := list(filter(is_running, deployment.processes()))) and time.monotonic() < until:
        time.sleep(0.5)
    assert left == []


def no_text_of_an_error_reaches_the_server(deployment):
    """A study that is joined between two jobs, and whose ``load`` quotes a row in its error."""
    clinics = (deployment.folder / "clinics.py").read_text()
    quoting = '    if site == "clinic-1":\n        raise ValueError("patient 4711")\n'
    leaky = clinics.replace("    rng = ", quoting + "    rng = ")
    assert leaky != clinics
    (deployment.folder / "leaky.py").write_text(leaky)
    for party in ("localhost", "clinic-1", "clinic-2"):
        deployment.sh(f"rookery flare-join kits/{party} leaky.py")
    said = deployment.sh(
        "rookery flare-submit leaky.py --kit kits/admin@example.org", is_fine=False
    )
    assert "ended as FINISHED" in said
    log = deployment.kit("clinic-1") / "local" / "rookery" / site_log.NAME
    *_, error = [record for record in site_log.read(log) if record["event"] == "error"]
    assert error["kind"] == "ValueError" and "patient 4711" in error["text"]
    assert error["reference"] in deployment.log("clinic-1")
    server = [file for file in deployment.kit("localhost").resolve().rglob("*") if file.is_file()]
    own = deployment.kit("localhost").resolve() / "local" / "custom" / "leaky.py"
    text = "patient 4711"  # the number alone may be part of a job's random id
    assert own in server and text.encode() in own.read_bytes()
    leaked = [file for file in server if text.encode() in file.read_bytes() and file != own]
    assert not leaked and text not in deployment.log("localhost") + said


def a_site_that_is_killed(deployment):
    """The job fails soon, and the same command ends with the bytes of the undisturbed run."""
    undisturbed = deployment.run.with_name("undisturbed")
    deployment.run.rename(undisturbed)
    (command,) = [
        line for name, lines in deployment.sections.items() if name.startswith("4.")
        for line in lines.splitlines() if "flare-submit" in line
    ]  # fmt: skip
    submitted = subprocess.Popen(
        ["bash", "-c", command], cwd=deployment.folder, env=deployment.environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    until = time.monotonic() + LONG
    while not list(deployment.run.glob("checkpoints/round-000000005*")):
        assert time.monotonic() < until and submitted.poll() is None
        time.sleep(0.02)
    (job,) = children(int((deployment.folder / "clinic-2.pid").read_text()))
    os.kill(job, signal.SIGKILL)
    killed = time.monotonic()
    said, _ = submitted.communicate(timeout=LONG)
    print(f"the job has failed {time.monotonic() - killed:.1f} s after the process was killed")
    assert submitted.returncode == 2 and "ended as FINISHED:EXECUTION_EXCEPTION" in said
    assert json.loads((undisturbed / "summary.json").read_text())["status"] == "finished"
    assert not (deployment.run / "summary.json").exists()

    deployment.do(4)
    assert "Resuming from round" in deployment.log("localhost")
    for name in ("history.jsonl", "summary.json", "checkpoints/round-000000020.safetensors"):
        assert (deployment.run / name).read_bytes() == (undisturbed / name).read_bytes()
