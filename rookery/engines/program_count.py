"""How many programs this process has compiled."""

_programs: list[str] = []


def note_program(algorithm: str) -> None:
    """To be called while a program is traced, which happens once per program."""
    _programs.append(algorithm)


def programs_compiled() -> int:
    """How many programs this process has compiled: one per structure and number of runs."""
    return len(_programs)
