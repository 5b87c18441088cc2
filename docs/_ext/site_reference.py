"""Writes the pages of the reference from the code, before Sphinx reads any page.

Every public name gets an entry made from its docstring, whose examples the tests run. An algorithm
has a page of its own, with the head of its file: the paper, the letters, the cost of a round.
"""

import dataclasses
import importlib
import inspect
import re
from pathlib import Path

from docutils import nodes
from site_names import LAYERS, algorithm_names, escaped, heading, public_names, resolve
from site_toml import described_by, keys_of, table
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from rookery.citation import cite


def directive(full: str, *, members: bool = True) -> str:
    """The entry of one name."""
    kind = "class" if inspect.isclass(resolve(full)) else "function"
    options = "\n   :members:" if kind == "class" and members else ""
    return f".. auto{kind}:: {full}{options}\n"


def layer_page(page: str) -> str:
    """All names of a layer."""
    title, text, modules = LAYERS[page]
    lines = [heading(title), text, ""]
    for module, names in modules.items():
        lines.append(heading(module.replace("rookery", "rk", 1) if names is None else module, "-"))
        doc = inspect.getdoc(resolve(module))
        if module != "rookery" and doc and (names is None):
            lines.append(prose(doc))
        lines += [
            directive(f"{module}.{name}")
            for name in (public_names(module) if names is None else names)
        ]
    return "\n".join(lines)


def algorithm_page(name: str, full: str) -> str:
    """An algorithm: its class, and the head of its file."""
    cls = resolve(full)
    head = inspect.getdoc(importlib.import_module(cls.__module__)) or ""
    return "\n".join(
        [
            heading(name),
            directive(full, members=False),
            inherited(cls),
            heading("Paper, letters and cost", "-"),
            prose(head),
            "",
            f"The file is ``{cls.__module__.replace('.', '/')}.py``. "
            ":doc:`/reference/costs` has the cost of a round as the ledger counts it.",
            "",
            heading("Cite", "-"),
            ".. code-block:: bibtex",
            "",
            *(f"   {line}" for line in cite(name).splitlines()),
            "",
        ]
    )


def inherited(cls: type) -> str:
    """The settings of a class that its own docstring does not describe, as a table."""
    own = described_by(inspect.getdoc(cls) or "")
    rows = [
        (f"``{key}``", f"``{default}``", text)
        for key, default, text in keys_of(cls)
        if inspect.isclass(cls) and key not in own and text
    ]
    if not rows:
        return ""
    return "Settings that it shares with other algorithms:\n\n" + table(
        rows, ("setting", "default", "meaning"), "20 15 65"
    )


def prose(text: str) -> str:
    """A docstring's paragraphs; what is indented stays as it is written."""
    chunks = re.split(r"\n\s*\n", text)
    written, was_literal = [], False

    def plain(chunk: str) -> str:  # nothing is markup in a literal block
        return re.sub(r"(?::[\w:]+:)?(`+)~?([^`]+)\1", r"\2", chunk)

    for chunk in chunks:
        if all(line.startswith("    ") for line in chunk.splitlines() if line):
            written.append(plain(chunk) if was_literal else "::\n\n" + plain(chunk))
            was_literal = True
        else:
            first, *rest = chunk.splitlines()
            inside = [line for line in rest if line.startswith("    ")]
            if inside and not any(line[:1].strip() for line in rest):
                written.append(escaped(first) + "\n\n::\n\n" + plain("\n".join(rest)))
            else:
                written.append("\n".join(escaped(line.strip()) for line in chunk.splitlines()))
            was_literal = False
    return "\n\n".join(written) + "\n"


def on_docstring(app, what, name, thing, options, lines: list[str]) -> None:
    """Escape what reStructuredText would read as markup, outside examples."""
    inside = False
    for i, line in enumerate(lines):
        text = line.strip()
        inside = text.startswith(">>>") or (inside and bool(text))
        if not inside:
            lines[i] = escaped(line)


def on_signature(app, what, name, thing, options, signature, returns):
    """A default that is made for each object is shown by the name of its class."""
    if not signature or "<factory>" not in signature or not dataclasses.is_dataclass(thing):
        return None
    for each in dataclasses.fields(thing):
        if each.default_factory is not dataclasses.MISSING:
            made = type(each.default_factory()).__name__
            signature = signature.replace(f"{each.name}=<factory>", f"{each.name}={made}()")
    return signature, returns


def on_missing(app: Sphinx, env: BuildEnvironment, node: pending_xref, text: nodes.Element):
    """Resolve a name that is written without its module, where only one object has it."""
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"].lstrip("~.")
    objects = env.domains["py"].data["objects"]
    last = target.rpartition(".")[2]
    hits = [full for full in objects if full.rpartition(".")[2] == last]
    hits.sort(key=lambda full: (full != f"rookery.{last}", full.count("."), full))
    if not hits:
        return None
    entry = objects[hits[0]]
    from sphinx.util.nodes import make_refnode

    return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, text, hits[0])


def write(folder: Path) -> None:
    """Write every page whose text has changed."""
    import site_costs
    from site_command_line import command_page
    from site_toml import toml_page

    pages = {
        "index.rst": index_page(),
        "toml.rst": toml_page(),
        "command-line.rst": command_page(),
        "costs.md": site_costs.page(),
    }
    pages |= {f"{page}.rst": layer_page(page) for page in LAYERS}
    for name, full in algorithm_names().items():
        pages[f"algorithms/{name}.rst"] = algorithm_page(name, full)
    pages["algorithms/index.rst"] = algorithms_index()
    for old in folder.rglob("*.rst"):
        if str(old.relative_to(folder)) not in pages:
            old.unlink()
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def index_page() -> str:
    """The list of pages."""
    names = "\n   ".join(["algorithms/index", *LAYERS, "toml", "command-line", "costs"])
    return f"""{heading("Reference")}
Every public name, by layer. ``rk`` is short for ``import rookery as rk``. ``make test`` runs the
examples.

.. toctree::
   :maxdepth: 1

   {names}
"""


def algorithms_index() -> str:
    """One line on each algorithm."""
    rows = []
    for name, full in sorted(algorithm_names().items(), key=lambda pair: pair[0].lower()):
        line = (inspect.getdoc(resolve(full)) or "").splitlines()[0]
        rows.append(f"   * - :doc:`{name}`\n     - {escaped(line)}")
    table = "\n".join(rows)
    names = "\n   ".join(sorted(algorithm_names(), key=str.lower))
    return f"""{heading("Algorithms")}
{len(rows)} algorithms.

.. list-table::
   :widths: 20 80

{table}

.. toctree::
   :hidden:

   {names}
"""


def on_start(app: Sphinx) -> None:
    """Write the pages."""
    write(Path(app.srcdir) / "reference")


def setup(app: Sphinx) -> dict:
    """Connect."""
    app.connect("builder-inited", on_start, priority=100)
    app.connect("autodoc-process-docstring", on_docstring, priority=100)
    app.connect("autodoc-process-signature", on_signature)
    app.connect("missing-reference", on_missing)
    return {"parallel_read_safe": True, "version": "1"}
