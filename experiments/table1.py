"""The whole of Table 1: run what is missing, then write tables and figures of all finished runs.

    spcacw table1 --data-dir DIR                  # six columns; the larger two pairs need a GPU
    spcacw table1 --data-dir DIR --columns mnist-rotate,mnist-relabel
    spcacw table1 --report-only

``<output>/runs`` has the runs. Next to it are ``table1.csv``, ``table1-cells.csv``, ``table1.md``,
``.tex``, ``.png`` and ``figures/``.

With ``--targets`` each silo is the target in turn: does a method help every silo, or only client 0?
A silo's score is its mean accuracy over seeds after the last epoch. An epoch chosen on test data,
for each silo separately, would flatter M times. Seeds that Local lacks there do not count.
``silos.csv`` has a line per run. ``silos.md`` has for each row the mean over silos, the worst
decile (mean of the lowest tenth of silos, at least one) and the share of silos that beat their own
Local. Pictures show the weights that each target gives to its peers.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean

from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.directory import write_atomically
from spcacw_flwr.silos.setup import setting_of

from . import figures
from .conf import Column, Job, Keys, Row, make_jobs, numbers
from .pages import NONE, table
from .results import (
    REFERENCE,
    Cell,
    Overview,
    cells_of,
    finished_runs,
    grouped,
    run_lines,
    six_digits,
    write_csv,
)
from .runs import Run, failures
from .scores import over_silos, pair

TEX = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "σ": r"$\sigma$", "α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$", "°": r"$^\circ$",
    "–": "--",
})  # fmt: skip
EXPLANATION = (
    "Accuracy of the target on its own test data in percent, mean ± sample standard deviation over "
    "seeds. **best**: at the epoch with the highest mean test accuracy, the paper's rule, which "
    "looks at test data and so flatters. **last**: at the last epoch. **honest**: at the epoch "
    "that held-out training data of the target chose. Δ: best minus the paper's, in standard "
    "errors of the difference. p: paired t-test over seeds against SP-CACW at the honest epoch "
    "(the last one, where nothing was held out), Holm's correction over the rows of a column. The "
    "three best of a column are bold. Seconds are of one run on one thread, beside others."
)


def score(cell: Cell | None, rule: str, bold: str = "{}") -> str:
    """Return a cell's score by a rule, or the paper's score; ``bold`` marks the three best."""
    if cell is None or cell[f"{rule}_mean"] is None:
        return NONE
    text = pair(cell[f"{rule}_mean"], cell[f"{rule}_std"])
    return bold.format(text) if cell["top"] and rule == "best" else text


def chosen(cell: Cell, rule: str) -> str:
    """Return a score with the epoch that was chosen for it."""
    if cell[f"{rule}_epoch"] is None:
        return NONE
    text = f"{score(cell, rule)} ({cell[f'{rule}_epoch']})"
    return f"**{text}**" if cell["top"] and rule == "best" else text


def p_text(cell: Cell) -> str:
    """Return Holm's p."""
    if cell["row"] == REFERENCE or cell["p_holm"] is None:
        return NONE
    return f"{cell['p_holm']:.3f}" if cell["p_holm"] >= 0.001 else "< 0.001"


def overview(cells: Sequence[Cell], columns: Iterable[str]) -> Overview:
    """Return each row's title and its cell in each column; None where it has no cell."""
    place = {(cell["row"], cell["column"]): cell for cell in cells}
    titles = {cell["row"]: cell["title"] for cell in cells}
    return [(title, [place.get((row, column)) for column in columns])
            for row, title in titles.items()]  # fmt: skip


def markdown(cells: Sequence[Cell], columns: Mapping[str, str], failed: Sequence[str] = ()) -> str:
    """Return the overview, a table per column, and the reasons why cells are empty or lack seeds.

    ``columns`` maps names to titles; ``failed`` are sentences.
    """
    most: dict[str, int] = {}
    for cell in cells:
        most[cell["column"]] = max(most.get(cell["column"], 0), cell["seeds"])

    def beside_the_papers(cell: Cell | None) -> str:
        paper = score(cell, "paper")
        text = score(cell, "best", "**{}**") + (f" (paper {paper})" if paper != NONE else "")
        if cell is None or cell["seeds"] == most[cell["column"]]:
            return text
        return f"{text} ({cell['seeds']} seed{'s' * (cell['seeds'] > 1)})"

    rows = [[title, *map(beside_the_papers, of)] for title, of in overview(cells, columns)]
    text = [*table(["", *columns.values()], rows), "", EXPLANATION]
    head = ["", "best (epoch)", "paper", "Δ", "last", "honest (epoch)", "p", "seeds", "seconds"]
    for column, title in columns.items():
        rows = [[
            cell["title"], chosen(cell, "best"), score(cell, "paper"),
            NONE if cell["standard_errors"] is None else f"{cell['standard_errors']:+.1f}",
            score(cell, "last"), chosen(cell, "honest"), p_text(cell), str(cell["seeds"]),
            f"{cell['seconds']:.1f}",
        ] for cell in cells if cell["column"] == column]  # fmt: skip
        text += ["", f"### {title}", "", *table(head, rows)]
    if failed:
        text += ["", "### Runs that failed", "", *(f"- {failure}" for failure in failed)]
    return "\n".join(text) + "\n"


def latex(cells: Sequence[Cell], columns: Mapping[str, str]) -> str:
    r"""Return the overview as a ``table`` that needs ``\usepackage{booktabs}``."""

    def number(cell: Cell | None, rule: str) -> str:
        text = score(cell, rule, r"\mathbf{{{}}}").replace("±", r"\pm")
        return "--" if text == NONE else f"${text}$"

    titles = (title.translate(TEX) for title in columns.values())
    heads = " & ".join(rf"\multicolumn{{2}}{{c}}{{{title}}}" for title in titles)
    rules = " ".join(rf"\cmidrule(lr){{{2 * k + 2}-{2 * k + 3}}}" for k in range(len(columns)))
    text = [
        r"\begin{table}", r"\centering",
        r"\caption{Highest mean test accuracy (\%) over epochs, $\pm$ sample standard deviation "
        r"over seeds, beside the paper's; the three best of a column in bold.}",
        rf"\begin{{tabular}}{{l{'rr' * len(columns)}}}", r"\toprule", rf" & {heads} \\", rules,
        " & " + " & ".join(["ours & paper"] * len(columns)) + r" \\", r"\midrule",
    ]  # fmt: skip
    for title, found in overview(cells, columns):
        parts = [number(cell, rule) for cell in found for rule in ("best", "paper")]
        text.append(" & ".join([title.translate(TEX), *parts]) + r" \\")
    return "\n".join([*text, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def report(
    jobs: Sequence[Job], runs: Sequence[Run], columns: Sequence[Column], rows: Sequence[Row],
    output: Path, name: str = "table1",
) -> list[Path]:  # fmt: skip
    """Write all tables and figures of the finished runs; return the files.

    SpcacwError if only held-out twins are finished, or nothing.
    """
    found = finished_runs(jobs, runs)
    cells = [cell for column in columns for cell in cells_of(found, column, rows)]
    if not cells:
        raise SpcacwError(f"No run that is scored on test data is finished in {output}.")
    files = {end: output / f"{name}{end}" for end in (".csv", "-cells.csv", ".md", ".tex", ".png")}
    write_csv(files[".csv"], run_lines(found))
    write_csv(files["-cells.csv"], [six_digits(cell) for cell in cells])
    order = [row.name for row in rows]
    cells.sort(key=lambda cell: order.index(cell["row"]))  # within a row, in the columns' order
    there = {cell["column"] for cell in cells}
    titles = {column.name: column.title for column in columns if column.name in there}
    text = markdown(cells, titles, failures(runs))
    write_atomically(files[".md"], text.encode())
    write_atomically(files[".tex"], latex(cells, titles).encode())
    figures.table(files[".png"], overview(cells, titles), list(titles.values()))
    made = list(files.values())
    folder = output / ("figures" if name == "table1" else f"figures-{name.partition('-')[2]}")
    folder.mkdir(exist_ok=True)
    for column, title in titles.items():
        of = {row.title: found[column, row.name, False] for row in rows
              if (column, row.name, False) in found}  # fmt: skip
        reference = {row.name: row.title for row in rows}.get(REFERENCE, REFERENCE)
        made += figures.draw_all(folder, column, title, of, reference)
    return made


def silo_jobs(
    columns: Sequence[Column], rows: Sequence[Row], seeds: Sequence[int], more: Keys, wanted: str,
    tuned: bool,
) -> list[Job]:  # fmt: skip
    """Return the runs with each wanted silo as the target; ``wanted`` is ``all``, or numbers."""
    jobs = []
    for seed, column in product(seeds, columns):
        silos = setting_of(Config.from_flat({**column.keys, **more})).num_silos
        targets = range(silos) if wanted == "all" else numbers(wanted)
        for target in targets:
            keys, note = {**more, "target": target}, f"target {target}"
            jobs += make_jobs([column], rows, [seed], keys, tuned=tuned, note=note)
    return jobs


def report_silos(
    jobs: Sequence[Job], runs: Sequence[Run], columns: Sequence[Column], rows: Sequence[Row],
    output: Path,
) -> list[Path]:  # fmt: skip
    """Write silos.csv, silos.md and pictures of the finished runs; return the files."""
    found = grouped(jobs, runs, lambda _, config: (config.run.target,))
    write_csv(output / "silos.csv", [
        {"column": column, "method": row, "seed": line.pop("seed"), "target": target, **line}
        for (column, row, target), curves in found.items() for line in curves.lines()
    ])  # fmt: skip
    last = {where: curves.at() for where, curves in found.items()}
    text = ["Accuracy in percent at the last epoch, mean over seeds, each silo as the target."]
    for column in columns:
        lines = []
        for row in rows:
            both = []
            for (name, method, target), mine in last.items():
                alone = last.get((name, "local", target), {})
                seeds = mine.keys() & alone.keys()
                if (name, method) == (column.name, row.name) and seeds:
                    both.append([fmean(of[seed] for seed in seeds) for of in (mine, alone)])
            if both:
                mean, worst, share = over_silos(*zip(*both, strict=True))
                beats = f"{100 * share:.0f} %" if row.name != "local" else NONE
                lines.append([row.title, str(len(both)), f"{mean:.2f}", f"{worst:.2f}", beats])
        heads = ["", "silos", "mean", "worst decile", "beat their own Local"]
        text += ["", f"### {column.title}", "", *table(heads, lines)]
    write_atomically(output / "silos.md", ("\n".join(text) + "\n").encode())
    made = [output / "silos.csv", output / "silos.md"]
    for column, row in product(columns, rows):
        of = {t: c for (name, r, t), c in found.items() if (name, r) == (column.name, row.name)}
        path = output / f"listening-{column.name}-{row.name}.png"
        if of and figures.listening(path, f"{column.title}, {row.title}", of):
            made.append(path)
    return made
