"""Submit three jobs that a clinic must refuse: code, a foreign module, and a changed study."""

import json
import shutil
import sys
import tempfile
from pathlib import Path

from nvflare.fuel.flare_api.flare_api import (  # pyright: ignore[reportMissingImports]
    new_secure_session,
)

from rookery.remote.transports.flare.deploy import make_job

SITES = ("clinic-1", "clinic-2")
admin, clinic = map(Path, sys.argv[1:])
ran = Path("foreign-code-has-run").resolve()


def send(what, study, change=lambda folder: None):
    """Submit a job, wait for its end, and say how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        job = make_job(study, SITES)
        job.export_job(folder)
        change(Path(folder) / job.name)
        session = new_secure_session(admin.resolve().name, str(admin), timeout=30.0)
        try:
            number = session.submit_job(str(Path(folder) / job.name))
            status = session.monitor_job_and_return_job_meta(number)[1]["status"]
        except Exception as error:  # the server itself may refuse it
            status = str(error)
        finally:
            session.close()
    is_refused = "COMPLETED" not in status and not ran.exists()
    print(f"{what}: {'refused' if is_refused else 'NOT REFUSED'}", flush=True)
    print(f"  {status}", file=sys.stderr)


def with_code(folder):
    """Add a class to the clinics' part of the job, which writes a file when it is made."""
    for config in folder.glob("*/config/config_fed_client.json"):
        settings = json.loads(config.read_text())
        settings["components"].append({"id": "foreign", "path": "foreign.Foreign", "args": {}})
        config.write_text(json.dumps(settings))
        code = config.parent.parent / "custom" / "foreign.py"
        code.parent.mkdir(exist_ok=True)
        code.write_text(
            f"class Foreign:\n    def __init__(self):\n        open({str(ran)!r}, 'w')\n"
        )


send("a job with code", "clinics", with_code)
send("a module that nobody joined", "this")
joined = clinic / "local" / "custom" / "clinics.py"
shutil.copy(joined, "clinics.joined")
joined.write_text(joined.read_text() + "print('changed')\n")
send("a study that has changed", "clinics")
shutil.copy("clinics.joined", joined)
