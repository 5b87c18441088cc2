"""Tables as Markdown and as LaTeX, for README files and papers."""

import re

from rich.table import Table
from rich.text import Text

_NUMBER = r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]\d+)?"
_VALUE = re.compile(rf"{_NUMBER}(?: ± {_NUMBER})?")
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "—": "---",
    "±": r"$\pm$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def markdown(table: Table) -> str:
    r"""A table of :mod:`rookery.report.tables` as Markdown, its title above it.

    >>> table = Table("curve", "loss", title="Losses")
    >>> table.add_row("a|b", "0.5 ± 0.1")
    >>> print(markdown(table), end="")
    **Losses**
    <BLANKLINE>
    | curve | loss |
    |:---|---:|
    | a\|b | 0.5 ± 0.1 |
    """
    heads, rows = _texts(table)

    def line(cells: list[str]) -> str:
        escaped = [cell.replace("|", "\\|").replace("\n", "<br>") for cell in cells]
        return f"| {' | '.join(escaped)} |\n"

    rule = f"|:---|{'---:|' * (len(heads) - 1)}\n"
    return f"**{_plain(table.title)}**\n\n{line(heads)}{rule}{''.join(map(line, rows))}"


def latex(table: Table) -> str:
    r"""A table of :mod:`rookery.report.tables` as a LaTeX float; it needs the package booktabs.

    >>> table = Table("curve", "outer_loss", title="Losses")
    >>> table.add_row("FedNest", "-1.2e-05 ± 3e-06")
    >>> print(latex(table), end="")
    \begin{table}
      \centering
      \caption{Losses}
      \begin{tabular}{lr}
        \toprule
        curve & outer\_loss \\
        \midrule
        FedNest & $-1.2 \cdot 10^{-5} \pm 3 \cdot 10^{-6}$ \\
        \bottomrule
      \end{tabular}
    \end{table}
    """
    heads, rows = _texts(table)

    def line(cells: list[str]) -> str:
        return f"    {' & '.join(map(_cell, cells))} \\\\\n"

    return (
        "\\begin{table}\n  \\centering\n"
        f"  \\caption{{{_cell(_plain(table.title))}}}\n"
        f"  \\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}\n"
        f"    \\toprule\n{line(heads)}    \\midrule\n{''.join(map(line, rows))}    \\bottomrule\n"
        "  \\end{tabular}\n\\end{table}\n"
    )


def _cell(text: str) -> str:
    r"""A text for LaTeX; a number, with or without its interval, in mathematics.

    >>> _cell("1,234 ± 5"), _cell("100 % of R&D"), _cell("—")
    ('$1{,}234 \\pm 5$', '100 \\% of R\\&D', '---')
    """
    text = text.replace("\n", "; ")
    if not _VALUE.fullmatch(text):
        return "".join(_SPECIAL.get(character, character) for character in text)
    powers = re.sub(r"e([+-]\d+)", lambda e: f" \\cdot 10^{{{int(e[1])}}}", text)
    return "$" + powers.replace(",", "{,}").replace("±", "\\pm") + "$"


def _texts(table: Table) -> tuple[list[str], list[list[str]]]:
    """The headings and the rows of a table, as plain text."""
    heads = [_plain(column.header) for column in table.columns]
    cells = [[_plain(cell) for cell in column.cells] for column in table.columns]
    return heads, [list(row) for row in zip(*cells, strict=True)]


def _plain(content: object) -> str:
    return content.plain if isinstance(content, Text) else str(content or "")
