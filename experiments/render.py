"""Table 1 as Markdown and as LaTeX with booktabs, from the cells alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .results import REFERENCE, Cell
from .scores import Score

NONE = "–"
TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "σ": r"$\sigma$", "α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$", "°": r"$^\circ$",
    "–": "--",
}  # fmt: skip
EXPLANATION = (
    "Accuracy of the target on its own test data in percent, mean ± sample standard deviation over "
    "seeds. **best**: at the epoch with the highest mean test accuracy, the paper's rule, which "
    "looks at test data and so flatters. **last**: at the last epoch. **honest**: at the epoch "
    "that held-out training data of the target chose. Δ: best minus the paper's, in standard "
    "errors of the difference. p: paired t-test over seeds against SP-CACW at the honest epoch "
    "(the last one, where nothing was held out), Holm's correction over the rows of a column. The "
    "three best of a column are bold. Seconds are of one run on one thread, beside others."
)


def pair(mean: float, std: float | None) -> str:
    """Return ``mean ± std``; of one seed the mean alone."""
    return f"{mean:.2f}" + (f" ± {std:.2f}" if std is not None else "")


def shown(score: Score | None, epoch: bool = False) -> str:
    """Return a score, with its epoch where that was chosen."""
    if score is None:
        return NONE
    return pair(score.mean, score.std) + (f" ({score.epoch})" if epoch else "")


def p_text(cell: Cell) -> str:
    """Return Holm's p."""
    if cell.row == REFERENCE or cell.p_holm is None:
        return NONE
    return f"{cell.p_holm:.3f}" if cell.p_holm >= 0.001 else "< 0.001"


def line(parts: Sequence[str]) -> str:
    """Return a row of a Markdown table."""
    return "| " + " | ".join(parts) + " |"


def by_place(cells: Sequence[Cell]) -> tuple[dict[str, str], dict[tuple[str, str], Cell]]:
    """Return the titles of the rows in order, and the cells by row and column."""
    return {c.row: c.title for c in cells}, {(c.row, c.column): c for c in cells}


def ordered_rows(cells: Sequence[Cell], order: Sequence[str]) -> list[str]:
    """Return the rows that have a cell, in the order of the table."""
    there = {c.row for c in cells}
    return [row for row in order if row in there] + sorted(there - set(order))


def markdown(
    cells: Sequence[Cell], columns: Mapping[str, str], order: Sequence[str],
    failures: Sequence[str] = (),
) -> str:  # fmt: skip
    """Return the overview, a table of each column, and why cells are empty or lack seeds.

    ``columns`` maps names to titles; ``failures`` are sentences.
    """
    titles, place = by_place(cells)
    text = [line(["", *columns.values()]), line(["---", *("--:" for _ in columns)])]
    for row in ordered_rows(cells, order):
        said = []
        for column in columns:
            cell = place.get((row, column))
            best = shown(cell.best) if cell else NONE
            best = f"**{best}**" if cell and cell.top else best
            paper = f" (paper {pair(*cell.paper)})" if cell and cell.paper else ""
            said.append(best + paper)
        text.append(line([titles[row], *said]))
    text += ["", EXPLANATION]
    head = ["", "best (epoch)", "paper", "Δ", "last", "honest (epoch)", "p", "seeds", "seconds"]
    for column, title in columns.items():
        text += ["", f"### {title}", "", line(head), line(["---", *("--:" for _ in head[1:])])]
        for row in ordered_rows(cells, order):
            if (cell := place.get((row, column))) is None:
                continue
            best = shown(cell.best, epoch=True)
            errors = NONE if cell.standard_errors is None else f"{cell.standard_errors:+.1f}"
            text.append(line([
                cell.title, f"**{best}**" if cell.top else best,
                pair(*cell.paper) if cell.paper else NONE, errors, shown(cell.last),
                shown(cell.honest, epoch=True), p_text(cell), str(cell.best.seeds),
                f"{cell.seconds:.1f}",
            ]))  # fmt: skip
    if failures:
        text += ["", "### Runs that failed", "", *(f"- {failure}" for failure in failures)]
    return "\n".join(text) + "\n"


def escaped(text: str) -> str:
    """Return a text as LaTeX shows it."""
    return "".join(TEX.get(letter, letter) for letter in text)


def tex_pair(mean: float, std: float | None, bold: bool = False) -> str:
    """Return mean ± std in LaTeX's mathematics."""
    inner = f"{mean:.2f}" + (rf" \pm {std:.2f}" if std is not None else "")
    return rf"$\mathbf{{{inner}}}$" if bold else f"${inner}$"


def latex(cells: Sequence[Cell], columns: Mapping[str, str], order: Sequence[str]) -> str:
    r"""Return the overview as a ``table`` that needs ``\usepackage{booktabs}``."""
    titles, place = by_place(cells)
    heads = " & ".join(rf"\multicolumn{{2}}{{c}}{{{escaped(title)}}}" for title in columns.values())
    rules = " ".join(rf"\cmidrule(lr){{{2 * k + 2}-{2 * k + 3}}}" for k in range(len(columns)))
    text = [
        r"\begin{table}", r"\centering",
        r"\caption{Highest mean test accuracy (\%) over epochs, $\pm$ sample standard deviation "
        r"over seeds, beside the paper's; the three best of a column in bold.}",
        rf"\begin{{tabular}}{{l{'rr' * len(columns)}}}", r"\toprule", rf" & {heads} \\", rules,
        " & " + " & ".join(["ours & paper"] * len(columns)) + r" \\", r"\midrule",
    ]  # fmt: skip
    for row in ordered_rows(cells, order):
        parts = []
        for column in columns:
            cell = place.get((row, column))
            parts.append(tex_pair(cell.best.mean, cell.best.std, cell.top) if cell else "--")
            parts.append(tex_pair(*cell.paper) if cell and cell.paper else "--")
        text.append(rf"{escaped(titles[row])} & {' & '.join(parts)} \\")
    return "\n".join([*text, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])
