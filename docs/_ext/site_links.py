"""Links between pages of the repository, as pages of the site.

Files such as docs/runs.md link to others by their paths in the repository, so that they can be read
there too. On the site, an example is a page of the gallery, and a file that has no page is named
without a link.
"""

import re
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#:\s]+)(#[^)]*)?\)")
PAGES = {
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "CHANGELOG.md": "project/changes.md",
    "README.md": "index.md",
    "examples": "gallery/index.rst",
    "examples/04_deploy": "tutorials/deploy-with-flare.md",
    "experiments": "papers/figures.md",
}


def page_of(target: Path) -> str | None:
    """The page of the site for a file or folder of the repository, as a path in docs."""
    inside = target.relative_to(ROOT)
    if inside.parts[:1] == ("docs",):
        return str(inside.relative_to("docs"))
    if inside.parts[:1] == ("examples",) and inside.suffix == ".py":
        return f"gallery/{inside.relative_to('examples').with_suffix('.rst')}"
    if inside.parts[:1] == ("experiments",) and len(inside.parts) > 1:
        return f"papers/experiments/{inside.parts[1]}.md"
    return PAGES.get(str(inside))


def rewritten(text: str, source: Path) -> str:
    """A page's text with links to the pages of the site.

    Args:
        text: of a Markdown file.
        source: the file, whose folder relative links start from.
    """

    def change(match: re.Match) -> str:
        label, path, anchor = match[1], match[2], match[3] or ""
        target = (source.parent / path).resolve()
        if not target.is_relative_to(ROOT) or not target.exists():
            return match[0]
        there = page_of(target)
        return label if there is None else f"[{label}](/{there}{anchor})"

    return LINK.sub(change, text)


def write_experiments(app: Sphinx) -> None:
    """A page for every folder of experiments: its README with its pictures."""
    folder = Path(app.srcdir) / "papers" / "experiments"
    folder.mkdir(exist_ok=True)
    for readme in sorted((ROOT / "experiments").glob("*/README.md")):
        here = f"../../../experiments/{readme.parent.name}"
        text = rewritten(readme.read_text(), readme)
        text = re.sub(r"(!\[[^\]]*\])\(([^)/]+)\)", rf"\1({here}/\2)", text)
        page = folder / f"{readme.parent.name}.md"
        if not page.exists() or page.read_text() != text:
            page.write_text(text)


def on_read(app: Sphinx, page: str, content: list[str]) -> None:
    """Change the links of every Markdown page."""
    source = app.env.doc2path(page)
    if source.suffix == ".md":
        content[0] = rewritten(content[0], Path(source))


def on_include(app: Sphinx, path: Path, page: str, content: list[str]) -> None:
    """The same for files of the repository that a page includes."""
    content[0] = rewritten(content[0], Path(app.srcdir) / path)


def setup(app: Sphinx) -> dict:
    """Connect."""
    app.connect("builder-inited", write_experiments, priority=100)
    app.connect("source-read", on_read)
    app.connect("include-read", on_include)
    return {"parallel_read_safe": True, "version": "1"}
