"""Markdown tables, and the tables of the pages, made from committed results alone.

    python -m spcacw_flwr.experiments pages [--check]

In README.md and docs/*.md, the text between ``<!-- table: PATH OPTIONS -->`` and ``<!-- end -->``
is a table of the file at PATH, relative to the repository. For a Markdown file the option
``number`` picks a table (1 is the first). For a CSV there are these OPTIONS, split as in a shell:

- ``where="a=1|2; b=x"`` keeps the lines with these values;
- ``by="a; b"`` makes a row of the lines that agree in these columns; without it each line is a row;
- ``across=a`` makes a column of each value of ``a``;
- ``show="a; b: title: .2f"`` names the columns to show, their titles and formats. For several
  lines it shows the mean; a format like ``±.2f`` adds the sample standard deviation.

``by`` takes titles and formats as ``show`` does.
"""

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.directory import write_atomically

NONE = "–"
MARKED = re.compile(r"(<!-- table: (\S+)([^\n]*?) -->\n).*?(<!-- end -->)", re.S)
TABLE = re.compile(r"(?:^\|.*\n)+", re.M)
Field = tuple[str, str, str]
"""A column of a CSV, its title and its format."""


def line(parts: Sequence[str]) -> str:
    """Return a row of a Markdown table."""
    return "| " + " | ".join(parts) + " |"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], align: str = "lr") -> list[str]:
    """Return a Markdown table's lines; ``align`` has l or r per column, and the last repeats."""
    rule = [{"l": "---", "r": "--:"}[letter] for letter in align.ljust(len(heads), align[-1])]
    return [line(heads), line(rule), *map(line, rows)]


def fields(text: str) -> list[Field]:
    """Split ``name: title: format; …``; the title is the name if there is none."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, title, form = ([*(word.strip() for word in part.split(":")), "", ""])[:3]
        found.append((name, title or name, form))
    return found


def cell(values: pd.Series, form: str) -> str:
    """Return one number or text, or the mean of several."""
    values = values.dropna()
    if values.empty:
        return NONE
    if not pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values):
        return ", ".join(dict.fromkeys(map(str, values)))
    mean = format(values.mean() if len(values) > 1 else values.iloc[0], form.removeprefix("±"))
    spread = form.startswith("±") and len(values) > 1
    return mean + (f" ± {format(values.std(), form[1:])}" if spread else "")


def from_csv(path: Path, where: str = "", by: str = "", across: str = "", show: str = "") -> str:
    """Return the table that the options describe; KeyError for a column that is missing."""
    lines = pd.read_csv(path)
    for condition in filter(None, where.split(";")):
        name, _, values = condition.strip().partition("=")
        lines = lines[lines[name].astype(str).isin(values.split("|"))]
    keys, shown = fields(by), fields(show)
    others = list(dict.fromkeys(lines[across])) if across else [None]
    heads = [title for _, title, _ in keys]
    for other in others:
        for _, title, _ in shown:
            several = f"{other}, {title}" if len(shown) > 1 else str(other)
            heads.append(several if across else title)
    names = [name for name, _, _ in keys] or [lines.index]
    rows = []
    for _, of in lines.groupby(names, sort=False, dropna=False):
        row = [cell(of[name].iloc[:1], form) for name, _, form in keys]
        for other in others:
            these = of[of[across] == other] if across else of
            row += [cell(these[name], form) for name, _, form in shown]
        rows.append(row)
    return "\n".join(table(heads, rows, "l" * len(keys) + "r")) + "\n"


def from_markdown(path: Path, number: str = "1") -> str:
    """Return a table of a Markdown file by its number; IndexError if the file has fewer."""
    return TABLE.findall(path.read_text(encoding="utf-8"))[int(number) - 1]


def filled(page: Path, root: Path) -> str:
    """Return the page with all its tables filled; SpcacwError for a table that cannot be made."""

    def fill(found: re.Match[str]) -> str:
        head, name, words, end = found.groups()
        try:
            options = dict(word.split("=", 1) for word in shlex.split(words))
            make = from_markdown if name.endswith(".md") else from_csv
            return f"{head}\n{make(root / name, **options)}\n{end}"
        except (OSError, KeyError, IndexError, TypeError, ValueError) as error:
            raise SpcacwError(f"{page.name}: no table of {name}{words}: {error!r}") from None

    text = page.read_text(encoding="utf-8")
    if len(MARKED.findall(text)) != text.count("<!-- table:"):
        raise SpcacwError(f"{page.name}: a table has no <!-- end --> of its own")
    return MARKED.sub(fill, text)


def pages(root: Path, check: bool) -> list[Path]:
    """Fill the tables of the pages; with ``check``, write none: SpcacwError names stale pages."""
    found = [*root.glob("README.md"), *sorted((root / "docs").glob("*.md"))]
    texts = {page: filled(page, root) for page in found}
    stale = [page for page, text in texts.items() if page.read_text(encoding="utf-8") != text]
    if check and stale:
        names = ", ".join(page.relative_to(root).as_posix() for page in stale)
        raise SpcacwError(
            f"Tables of {names} are not those of the committed results; "
            "python -m spcacw_flwr.experiments pages fills them."
        )
    for page in stale:
        write_atomically(page, texts[page].encode())
    return stale
