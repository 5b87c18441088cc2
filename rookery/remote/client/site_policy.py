"""A site's policy: what a site answers, in a file of its own, whatever a server asks for.

A policy is a TOML file beside the site's data. :mod:`rookery.remote.client.enforcer` enforces it in
the client's process. ``rookery flare-join`` writes the default one, and adds the content hash of
every study that the site joins; nothing that comes over the network can change the file.
"""

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType

from rookery import check

_MEANING = {
    "algorithms": "names of the algorithms that may run; empty: any that a joined study uses",
    "min_rows": "fewest rows that an evaluation averages",
    "mix_keys": "mix a key of the site's own into the server's: it cannot choose batches then",
    "largest_incoming_norm": "longest request, in the Euclidean norm over all its numbers",
    "largest_outgoing_norm": "longest reply; a longer one is not sent",
    "clip": "longest way of a reply from what was sent, or from zero; a longer one is shortened",
    "noise": "standard deviation of the noise on every number that leaves, in units of clip",
    "delta": "delta of the epsilon in the site's log",
    "largest_epsilon": "no reply leaves that would make a client's epsilon larger",
    "whole_numbers": "let whole numbers leave, which are neither clipped nor noised",
    "requests_per_hour": "most requests per client in an hour",
    "largest_message": "most bytes of a request or a reply",
    "most_local_iterations": "most iterations of a loop of a step, and most steps of a request",
    "memory": "most bytes of values that a client keeps",
}


REFUSED = "refused by the site's policy: "
"""How the server is told a reason."""


class Refused(Exception):
    """The site's policy does not allow it; the text goes to the server and holds no data."""


@dataclass(frozen=True, kw_only=True)
class SitePolicy:
    """The limits of a site; the defaults are the default site policy.

    With ``mix_keys`` or ``noise``, trajectories differ from simulated ones: the site's batches and
    its noise are its own. ``SitePolicy.without_limits()`` leaves all numbers as they are.

    >>> SitePolicy(min_rows=50, noise=1.0).min_rows
    50
    >>> SitePolicy(noise=1.0, clip=math.inf)
    Traceback (most recent call last):
    ValueError: SitePolicy.noise = 1.0 is in units of clip, so clip must be finite, got inf.

    Args:
        algorithms: names of the algorithms that may run; empty allows any.
        min_rows: the fewest rows that an evaluation of a step averages.
        mix_keys: whether a secret key of the site is mixed into the server's random keys.
        largest_incoming_norm: requests with a larger Euclidean norm are refused.
        largest_outgoing_norm: replies with a larger Euclidean norm are not sent.
        clip: replies are clipped to this norm: the way from the value that was sent if the reply is
            an iterate, otherwise the reply itself.
        noise: standard deviation of Gaussian noise on every number of a reply, in units of clip.
        delta: for the epsilon that the noise gives; see :meth:`epsilon`.
        largest_epsilon: replies that would make a client's epsilon larger are not sent; infinity
            sets no limit.
        whole_numbers: whether a study may upload whole numbers, such as compressed directions. They
            are neither clipped nor noised.
        requests_per_hour: the most requests of one client in an hour, repeated ones included.
        largest_message: the most bytes of one message, in either direction.
        most_local_iterations: the most iterations of a loop of a step, and steps of a request.
        memory: the most bytes of values that one client keeps for the server.
        studies: by name, the content hash of every study that the site has joined.
    """

    algorithms: tuple[str, ...] = ()
    min_rows: int = 10
    mix_keys: bool = True
    largest_incoming_norm: float = 1e6
    largest_outgoing_norm: float = 1e6
    clip: float = 1.0
    noise: float = 0.05
    delta: float = 1e-5
    largest_epsilon: float = math.inf
    whole_numbers: bool = False
    requests_per_hour: int = 10_000
    largest_message: int = 256 << 20
    most_local_iterations: int = 1000
    memory: int = 2 << 30
    studies: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self):
        if isinstance(self.algorithms, str) or not all(isinstance(a, str) for a in self.algorithms):
            raise TypeError(
                f"SitePolicy.algorithms must be a list of names, got {self.algorithms!r}."
            )
        object.__setattr__(self, "algorithms", tuple(self.algorithms))
        for name in ("mix_keys", "whole_numbers"):
            if not isinstance(value := getattr(self, name), bool):
                raise TypeError(f"SitePolicy.{name} must be true or false, got {value!r}.")
        counts = ("min_rows", "requests_per_hour", "largest_message", "most_local_iterations")
        for name in (*counts, "memory"):
            check.count(f"SitePolicy.{name}", getattr(self, name))
        norms = ("largest_incoming_norm", "largest_outgoing_norm")
        for name in (*norms, "clip", "largest_epsilon"):
            check.positive_or_infinite(f"SitePolicy.{name}", getattr(self, name))
        check.not_negative("SitePolicy.noise", self.noise)
        if self.noise > 0 and math.isinf(self.clip):
            raise ValueError(
                f"SitePolicy.noise = {self.noise} is in units of clip, so clip must be finite, got "
                f"{self.clip}."
            )
        if math.isfinite(self.clip) and self.clip > self.largest_outgoing_norm:
            raise ValueError(
                f"SitePolicy.clip = {self.clip} must be at most largest_outgoing_norm = "
                f"{self.largest_outgoing_norm}: no reply could leave."
            )
        if math.isfinite(self.largest_epsilon) and self.noise == 0:
            raise ValueError(
                f"SitePolicy.largest_epsilon = {self.largest_epsilon} needs noise above 0: without "
                "noise no epsilon is finite."
            )
        if not 0 < check.fraction("SitePolicy.delta", self.delta) < 1:
            raise ValueError(f"SitePolicy.delta must be below 1, got {self.delta}.")
        for name, digest in self.studies.items():
            if not (isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest)):
                raise ValueError(
                    f"SitePolicy.studies: {name!r} needs the SHA-256 of its file, 64 hexadecimal "
                    f"digits, got {digest!r}."
                )

    @classmethod
    def without_limits(cls) -> "SitePolicy":
        """A policy that changes no number and refuses no request of a sane size.

        >>> SitePolicy.without_limits().noise
        0.0
        """
        return cls(
            min_rows=1, mix_keys=False, largest_incoming_norm=math.inf,
            largest_outgoing_norm=math.inf, clip=math.inf, noise=0.0, whole_numbers=True,
            requests_per_hour=1 << 40, largest_message=1 << 30, most_local_iterations=1 << 30,
            memory=1 << 40,
        )  # fmt: skip

    @classmethod
    def read(cls, file: str | Path) -> "SitePolicy":
        """The policy in a TOML file; settings that it does not name have their defaults."""
        path = Path(file)
        if not path.is_file():
            raise ValueError(f"there is no site policy {path}. rookery flare-join writes one.")
        try:
            settings = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not a TOML file: {error}") from None
        known = [one.name for one in fields(cls)]
        for name in settings:
            check.one_of(f"{path}: setting", name, known)
        if not isinstance(settings.get("studies", {}), Mapping):
            raise ValueError(f"{path}: studies must be a table, [studies].")
        try:
            return cls(**settings)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from None

    def to_toml(self) -> str:
        """The policy as a file, with a comment on every setting.

        >>> print(SitePolicy().to_toml().splitlines()[4])
        min_rows = 10  # fewest rows that an evaluation averages
        """
        lines = [
            "# What this site answers, whatever a server asks for. The next job obeys it.",
            "# rookery audit shows what has left.",
            "",
        ]
        for name, meaning in _MEANING.items():
            value = getattr(self, name)
            shown = json.dumps([*value] if name == "algorithms" else value)
            lines.append(f"{name} = {shown.replace('Infinity', 'inf')}  # {meaning}")
        lines += ["", "[studies]  # joined: the SHA-256 of each study's file"]
        lines += [f'{name} = "{digest}"' for name, digest in self.studies.items()]
        return "\n".join(lines) + "\n"

    def epsilon(self, rho: float) -> float:
        """The epsilon of releases that together are rho-zCDP.

        (M. Bun, T. Steinke. TCC 2016, proposition 1.3: rho + 2 sqrt(rho ln(1 / delta)).)

        >>> round(SitePolicy(noise=2.0).epsilon(0.5), 2)
        5.3
        """
        return rho + 2 * math.sqrt(rho * math.log(1 / self.delta))

    @property
    def rho(self) -> float | None:
        """What one noised reply costs, in zCDP: any two replies are at most 2 clip apart.

        None if there is no noise: nothing is then known.

        >>> SitePolicy(noise=2.0).rho
        0.5
        """
        return 2 / self.noise**2 if self.noise > 0 else None

    def source_of(self, study: str, folder: str | Path) -> bytes:
        """The content of a joined study in a folder; refused if it was not joined or has changed.

        Args:
            study: its name, which another party may have chosen.
            folder: where joining has copied it to.
        """
        if study not in self.studies:
            raise Refused(f"study {study!r} was not joined at this site")
        source = (Path(folder) / f"{study}.py").read_bytes()
        if content_hash(source) != self.studies[study]:
            raise Refused(f"study {study!r} has changed since this site joined it")
        return source


def content_hash(content: bytes) -> str:
    """The SHA-256 of a study's file, in hexadecimal digits.

    >>> content_hash(b"")[:8]
    'e3b0c442'
    """
    return hashlib.sha256(content).hexdigest()


def add_study(file: Path, name: str, digest: str) -> None:
    """Write the hash of a joined study into a policy file, and leave the rest of it as it is.

    Args:
        file: the policy.
        name: the study's name.
        digest: its content hash.
    """
    SitePolicy.read(file)
    lines = file.read_text(encoding="utf-8").splitlines()
    header = next((i for i, line in enumerate(lines) if re.match(r"\s*\[studies\]", line)), None)
    if header is None:
        lines += ["", "[studies]"]
        header = len(lines) - 1
    kept = [
        line
        for i, line in enumerate(lines)
        if i <= header or not re.match(rf"\s*{re.escape(name)}\s*=", line)
    ]
    kept.insert(header + 1, f'{name} = "{digest}"')
    file.write_text("\n".join(kept) + "\n", encoding="utf-8")
    if SitePolicy.read(file).studies.get(name) != digest:
        raise ValueError(f"{file}: cannot add a study; write [studies] as its last table.")
