"""What clients are asked for, and what has come of it so far."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


class TooFewReplies(RuntimeError):
    """Fewer clients have answered than the policy asks for, and asking again did not help."""


class MemoryLost(RuntimeError):
    """A client was started anew, and what it had kept since the last checkpoint is gone."""


@dataclass(frozen=True)
class Request:
    """What one slot is asked for, made anew for every attempt, as a client may have forgotten.

    Attributes:
        client: the client's number.
        build: the arrays of the message.
        wanted: types and shapes of the leaves that are to come back.
        is_billed: whether an algorithm asks; checkpoints are not billed.
    """

    client: int
    build: Callable[[], Mapping[str, Any]]
    wanted: list[str]
    is_billed: bool = True


@dataclass(frozen=True)
class Reply:
    """What one slot gave."""

    leaves: list[Any]
    work: tuple[int, int] = (0, 0)


@dataclass
class Attempt:
    """Which slots an exchange still waits for, and what it has."""

    asked: Mapping[int, Request]
    numbers: dict[int, int] = field(default_factory=dict)
    """By slot, the number that its reply must bear."""
    waiting: dict[int, Request] = field(init=False)
    replies: dict[int, Reply] = field(default_factory=dict)
    spoiled: dict[int, Reply] = field(default_factory=dict)
    """Replies that are not finite."""
    refused: set[int] = field(default_factory=set)
    """Slots whose numbers were not taken; asked again, a client would send the same ones."""
    failed: dict[int, str] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)
    """Slots that have failed only in that nothing has come: their replies may be on the way."""
    lost: dict[int, int] = field(default_factory=dict)
    """Slots whose client has lost values, or everything."""

    def __post_init__(self):
        self.waiting = dict(self.asked)
