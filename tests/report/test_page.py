"""The page: one file with nothing to fetch, well formed, and safe from what a run is called."""

import base64
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from importlib.resources import files
from unittest.mock import Mock

import numpy as np
import pytest

from spcacw_flwr import report as html
from spcacw_flwr.config.config import Config
from spcacw_flwr.engine import plots
from spcacw_flwr.engine.simulate import simulate
from spcacw_flwr.report import pictures
from spcacw_flwr.report.facts import facts_of
from spcacw_flwr.report.page import write_report, write_report_if_possible
from spcacw_flwr.silos.pool import SiloPool
from tests.conftest import ran
from tests.engine.test_simulate import spoil
from tests.report.artefacts import ALPHAS, write_csv, write_run

VOID = {"meta", "img", "br", "hr", "link", "source", "input"}


class Page(HTMLParser):
    """A page's tags, words and pictures; fails where a tag is not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.tags, self.images, self.titles, self.words = [], [], [], [], []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "img":
            self.images.append(dict(attrs))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)
        if self.open and self.open[-1] == "h2":
            self.titles.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page_of(directory) -> Page:
    """The page of a run, which is well formed and wants nothing from anywhere."""
    text = write_report(directory).read_text(encoding="utf-8")
    page = Page(text)
    assert not {"script", "link", "iframe", "object", "embed", "base"} & set(page.tags)
    for name, value in page.attributes:
        assert name != "style"
        assert not name.startswith("on")
        if name in ("src", "href", "srcset"):
            assert value.startswith("data:image/svg+xml;base64,")
    style = text.split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    for image in page.images:
        assert len(image["alt"]) > 20
        picture = base64.b64decode(image["src"].split(",")[1]).decode()
        assert picture.rstrip().endswith("</svg>")
        assert "<text" not in picture  # letters are outlines: no font is needed
        assert "NaN" not in picture
    return page


ROWS = [(3, "", "", 90, 91, 1000, ""), (3, 1, 0.25, 85, 86, 1000, 2.63),
        (3, 3, 0.05, 89, 90, 1000, 2.63)]  # fmt: skip


def test_a_full_report_is_one_well_formed_file(tmp_path):
    figures = {"bias": [0, 0.2, 0.7, 0.6], "sigma": [0.4, 0.5, 0.6, float("nan")],
               "closed_form": [1, 0, 0, 0]}  # fmt: skip
    spent = {"1": {"epsilon": 2.0, "delta": 1e-5, "answers": 21}}
    counts = {"2": {"too-long": 3}}
    run = write_run(tmp_path / "run", figures=figures, privacy=spent, rejections=counts,
                    versions={"torch": "2.14"})  # fmt: skip
    head = ["seed", "without", "alpha", "accuracy", "best_accuracy", "test_samples", "chance"]
    write_csv(run / "leave_one_out.csv", head, ROWS)
    page = page_of(run)
    assert page.titles == [
        "How good the model became", "Who helped", "Against the truth",
        "When the weights changed", "With and without each peer", "Replies that were not used",
        "What it cost", "Privacy", "Configuration", "What the words mean",
    ]  # fmt: skip
    assert len(page.images) == 5
    for words in (
        "0 (target) 0.7000 0.7667 0.000 0.400 0 1 0.2500", "2 larger than allowed 3",
        "1 0.2500 85.00 % +5.00 ± 2.63", "1 2 1e-05 21", "torch 2.14",
        "seed 3 0",  # differs from its default
    ):  # fmt: skip
        assert words in page.text
    assert page.tags.count("h1") == 1


def test_what_went_wrong_without_ending_the_run_is_on_the_page(tmp_path):
    run = write_run(tmp_path / "run")
    assert "Warnings" not in page_of(run).titles
    warnings = ["A run of 3 rounds is too short.", "Silo 2 has a feature < 0."]
    status = json.loads((run / "status.json").read_text()) | {"warnings": warnings}
    (run / "status.json").write_text(json.dumps(status))
    page = page_of(run)
    assert page.titles[0] == "Warnings"
    assert "A run of 3 rounds is too short. Silo 2 has a feature < 0." in page.text


def test_a_target_without_peers_is_not_compared_with_itself(tmp_path):
    page = page_of(write_run(tmp_path / "run", alphas=[(0, [1]), (7, [1])], groups=[None]))
    for words in ("with the peers", "weight of the peers", "better than alone"):
        assert words not in page.text


def test_how_to_repeat_a_run_depends_on_where_its_data_are(tmp_path):
    run = "The command 'spcacw run --config config.toml' repeats the run."
    assert run in page_of(write_run(tmp_path / "run")).text
    own = {"setting": "own", "silo": "module:load"}
    assert run in page_of(write_run(tmp_path / "run", config=own)).text
    text = page_of(write_run(tmp_path / "run", config=own | {"silo": ""})).text
    assert run not in text
    assert "The app that has the data and the model repeats the run." in text


def test_what_a_run_is_called_is_text_and_nothing_else(tmp_path):
    evil = "<script>alert('x')</script>\"&<img src=x onerror=alert(1)>:Setting"
    run = write_run(tmp_path / "run", config={"setting": evil}, state="failed", error=evil,
                    accuracy=(50.0,))  # fmt: skip
    page = page_of(run)
    assert f"The run did not finish: {evil}." in page.text
    assert {image["src"][:5] for image in page.images} == {"data:"}


def test_what_is_not_known_is_left_out(tmp_path):
    """Of a method without weights, a run that failed before its first epoch, one just begun."""
    page = page_of(write_run(tmp_path / "run", alphas=None, config={"method": "pfedme"}))
    assert "The method pfedme puts no weight on silos" in page.text
    assert len(page.images) == 1
    assert "When the weights changed" not in page.titles
    failed = {"state": "failed", "error": "No silo answered."}
    page = page_of(write_run(tmp_path / "bad", accuracy=(), alphas=None, alone=None, **failed))
    assert "The run did not finish: No silo answered." in page.text
    assert page.images == []
    (tmp_path / "config.toml").write_text("seed = 1\n")
    assert "The run has not ended (unknown): 0 of" in page_of(tmp_path).text


@pytest.mark.parametrize("kind", ["angle", "none"])
def test_of_many_silos_the_heaviest_are_listed_and_the_others_summed_up(kind, tmp_path):
    silos = 89
    alpha = np.zeros(silos)
    alpha[:30] = np.arange(30, 0, -1)
    alpha /= alpha.sum()
    groups = [4.0 * i for i in range(silos)] if kind == "angle" else [None] * silos
    alphas = [(0, [1.0] + [0.0] * 88), *((16 * k, alpha.tolist()) for k in range(1, 800))]
    figures = {"bias": [0.5] * silos, "closed_form": [1.0] + [0.0] * 88}
    run = write_run(tmp_path / "run", alphas=alphas, groups=groups, kind=kind, figures=figures)
    page = page_of(run)
    rest = alpha[13:].sum()
    assert f"76 others {rest:.4f}" in page.text
    assert "59 silos have no weight at all." in page.text
    assert (run / "report.html").stat().st_size < 1_000_000
    assert len(page.images) == (4 if kind == "angle" else 3)


def test_the_picture_of_alpha_ends_with_the_last_round(tmp_path, monkeypatch):
    """The last α holds from its update on: for some rounds, or for none."""
    heat, ends = plots.heat, []

    def watched(*of, **how):
        mesh = heat(*of, **how)
        ends.append(mesh.get_coordinates()[0, :, 0].tolist())
        return mesh

    monkeypatch.setattr(plots, "heat", watched)
    for count in (2, 4):
        directory = write_run(tmp_path / str(count), alphas=ALPHAS[:count])
        pictures.over_time(facts_of(directory).weights)
    assert ends == [[0, 7, 21], [0, 7, 14, 21, 21]]


def test_a_report_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch):
    assert write_report_if_possible(write_run(tmp_path / "run")) == ""
    assert "holds no run" in write_report_if_possible(tmp_path)
    monkeypatch.setattr(html.page, "write_report", Mock(side_effect=ZeroDivisionError("oh")))
    said = write_report_if_possible(tmp_path / "run")
    assert said == "There is no report of this run (ZeroDivisionError: oh)."


def test_the_run_and_its_rerun_by_the_command_line(tmp_path):
    run = tmp_path / "run"
    ran("run", "--engine", "in-process", "--set", "epochs=2", "--output", run)
    assert "Replies that were not used" in Page((run / "report.html").read_text()).titles
    (run / "report.html").unlink()
    said = ran("report", run, "--leave-one-out", "1", "--lowest")
    assert "Leave-one-out: 3 runs in this process" in said
    rows = [line for line in said.splitlines() if line[0] == "│"]
    assert len(rows) == 2
    assert "without silo" in said
    page = Page((run / "report.html").read_text())
    assert "With and without each peer" in page.titles
    assert "The recorded run ended" not in page.text  # the rerun with all silos is the run
    assert len((run / "leave_one_out.csv").read_text().splitlines()) == 4


def test_a_failed_run_has_a_report_by_the_command_line(tmp_path):
    ran("run", "--engine", "in-process", "--set", "sketch=9999", "--output", tmp_path, code=1)
    page = Page((tmp_path / "report.html").read_text())
    assert "The run did not finish: sketch = 9999 is more than" in page.text


def test_what_cannot_be_reported_is_one_sentence(tmp_path, offline):
    assert ran("report", tmp_path, code=1).startswith(f"spcacw: {tmp_path} holds no run")
    run = write_run(tmp_path / "run", config={"setting": "mnist-relabel"})
    said = ran("report", run, "--leave-one-out", 1, "--data-dir", tmp_path / "nowhere", code=1)
    assert "Leave-one-out reruns the training here, with the data of all silos: " in said


def test_silos_that_send_nonsense_or_nothing_are_named(tmp_path, monkeypatch):
    """Silo 5 sends NaN from round 3 of 14 on; silo 4 is gone from then on, silo 2 for 2 rounds."""
    spoil(monkeypatch, 5, range(3, 99))
    whole = SiloPool.answer

    def answer(pool, request):
        away = {4: request.round >= 3, 2: request.round in (4, 5)}
        here = tuple(silo for silo in request.silos if not away.get(silo))
        return whole(pool, request.only(here))

    monkeypatch.setattr(SiloPool, "answer", answer)
    keys = {"epochs": 2, "compare_alone": False, "output": str(tmp_path)}
    found = simulate(Config.from_keys(quarantine_probe=0.0, **keys))
    assert not (tmp_path / "report.html").exists()  # that is left to its caller
    assert [(line["rejected"], line["quarantined"]) for line in found.epochs] == [(3, 1), (3, 1)]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["rejections"] == {"5": {"not-finite": 3}}
    page = page_of(tmp_path)
    for words in (
        "3 replies were not used; training went on without. They came from silo 5.",
        "1 silo was in quarantine at the end", "5 not a number, or infinite 3",
        "at most 1. Silo 4 stopped answering in round 3 of 14. "  # not quarantined for that
        "Silo 2 left questions unanswered, and answered again.",
        "2 2 – 4 12 3",  # a table: silo, unanswered questions, silent since
    ):  # fmt: skip
        assert words in page.text


MEASURE = """<!DOCTYPE html><body><script>
const page = PAGE;
for (const width of [360, 390, 1280]) {
  const frame = document.createElement("iframe");
  frame.width = width; frame.height = 20000; frame.srcdoc = page;
  frame.onload = () => {
    const inside = frame.contentDocument;
    const wide = [inside.documentElement, ...inside.querySelectorAll(".wide")]
      .filter(one => one.scrollWidth > one.clientWidth + 1);
    const said = document.createElement("p");
    said.textContent = `at ${width}: ${wide.length} scroll, ${frame.clientWidth} wide`;
    document.body.append(said);
  };
  document.body.append(frame);
}
</script>"""


AXE = """<script>
for (const details of document.querySelectorAll("details")) details.open = true;
axe.run().then(found => {
  const said = document.createElement("p");
  const ids = found.violations.map(one => one.id + " " + one.nodes[0].html);
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  said.textContent = `axe: ${ids} (${found.passes.length > 20} ${dark})`;
  document.body.append(said);
});
</script>"""
BROWSER = pytest.mark.skipif(not shutil.which("chromium"), reason="no Chromium here")


def chromium(tmp_path, page: str, *options: str) -> str:
    """Open a page in headless Chromium, and return what has become of it."""
    (tmp_path / "opened.html").write_text(page)
    return subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000",
         f"--user-data-dir={tmp_path / 'profile'}", *options, f"file://{tmp_path / 'opened.html'}"],
        capture_output=True, text=True, timeout=60,
    ).stdout  # fmt: skip


def full_run(tmp_path):
    """A run of named hospitals with every metric and long numbers."""
    found = {"last": 90.0, "interval": [88.12, 91.88], "alone": 86.5, "gain": -13.5,
             "gain_interval": [-23.41, -12.62]}  # fmt: skip
    share = {"last": 0.9, "interval": [0.881, 0.919], "alone": 0.865, "gain": -0.135,
             "gain_interval": [-0.234, -0.126]}  # fmt: skip
    table = dict.fromkeys(("accuracy", "balanced", "calibration"), found)
    table |= dict.fromkeys(("auroc", "log-loss", "brier"), share)
    figures = {"bias": [0, 0.2, 0.7, 0.6], "sigma": [0.4, 0.5, 0.6, 0.7], "epsilon": [1.0] * 4}
    names = ["Cleveland Clinic", "Budapest", "Zürich and Basel", "VA Long Beach"]
    return write_run(tmp_path / "run", metrics=table, figures=figures, names=names)


@BROWSER
@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_axe_finds_nothing_that_shuts_a_reader_out(tmp_path, scheme):
    page_of(run := full_run(tmp_path))
    axe = (files("axe_core_python") / "axe.min.js").read_text().replace("</script", "<\\/script")
    page = (run / "report.html").read_text()
    page = page.replace("</body>", f"<script>{axe}</script>{AXE}</body>")
    color = f"--blink-settings=preferredColorScheme={int(scheme == 'light')}"
    told = chromium(tmp_path, page, color, "--dump-dom")
    assert f"<p>axe:  (true {str(scheme == 'dark').lower()})</p>" in told, told[-400:]


@BROWSER
def test_it_prints_on_a4(tmp_path):
    page_of(run := full_run(tmp_path))
    page, paper = (run / "report.html").read_text(), tmp_path / "report.pdf"
    chromium(tmp_path, page, f"--print-to-pdf={paper}")
    sizes = re.findall(rb"/MediaBox \[0 0 (\S+) (\S+)\]", paper.read_bytes())
    points = {(round(float(width)), round(float(height))) for width, height in sizes}
    assert points == {(595, 842)}


@BROWSER
def test_nothing_scrolls_sideways_on_a_phone_or_a_screen(tmp_path):
    page = page_of(run := full_run(tmp_path))
    assert "90.00 % 88.1 to 91.9 86.50 % −13.50 −23.4 to −12.6" in page.text
    whole = json.dumps((run / "report.html").read_text()).replace("</", "<\\/")
    told = chromium(tmp_path, MEASURE.replace("PAGE", whole), "--dump-dom")
    assert "<p>at 360: 0 scroll, 360 wide</p>" in told
    assert "<p>at 390: 0 scroll, 390 wide</p>" in told
    assert "<p>at 1280: 0 scroll, 1280 wide</p>" in told
