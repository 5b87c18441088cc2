import os
import subprocess
import sys

import pytest

from rookery.engines import compile_cache

CODE = """
import jax, rookery as rk
assert jax.config.jax_compilation_cache_dir == {before!r}, "importing rookery turned the cache on"
zoo = rk.zoo.scalar_bilevel()
algorithm = rk.SOBA(outer_lr=0.1, inner_lr=0.1)
rk.run(algorithm, zoo.problem, rk.Population.stacked(zoo.data), zoo.start, rounds=1)
"""


def test_the_directory_is_the_users_cache_unless_the_variable_names_another(tmp_path):
    assert compile_cache.directory({"ROOKERY_COMPILE_CACHE": "OFF"}) is None
    named = {"ROOKERY_COMPILE_CACHE": str(tmp_path), "XDG_CACHE_HOME": "/elsewhere"}
    assert compile_cache.directory(named) == tmp_path
    home = compile_cache.directory({})
    assert home is not None and home.parts[-3:] == (".cache", "rookery", "compiled")


def test_the_oldest_files_and_empty_ones_are_deleted(tmp_path):
    for age, (name, size) in enumerate([("new", 3), ("empty", 0), ("middle", 4), ("old", 1)]):
        path = tmp_path / name
        path.write_bytes(b"x" * size)
        os.utime(path, (1000 - age, 1000 - age))
    compile_cache.prune(tmp_path, 7)
    assert {path.name for path in tmp_path.iterdir()} == {"new", "middle"}


@pytest.mark.slow  # three processes that import JAX
def test_a_run_keeps_its_program_unless_the_user_decides_otherwise(tmp_path):
    def run(before=None, **settings):
        others = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
        environ = {**others, "XDG_CACHE_HOME": str(tmp_path / "home"), **settings}
        subprocess.run([sys.executable, "-c", CODE.format(before=before)], env=environ, check=True)

    run(ROOKERY_COMPILE_CACHE="off")
    own = str(tmp_path / "own")
    run(before=own, JAX_COMPILATION_CACHE_DIR=own)
    assert not (tmp_path / "home").exists()
    run()
    kept = [path.name for path in (tmp_path / "home" / "rookery" / "compiled").iterdir()]
    assert any("_advance" in name for name in kept)
