"""The run-time type checker of the tests; see conftest.py."""

from beartype import BeartypeConf, beartype

# as static checkers do, accept an int where a float is annotated
check = beartype(conf=BeartypeConf(is_pep484_tower=True))
