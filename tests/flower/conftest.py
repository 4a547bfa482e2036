"""Files of federations: two at a time, and a failed test shows what their programs said last."""

from contextlib import ExitStack, suppress

import pytest

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.flower import certificates
from spcacw_flwr.flower.processes import locked
from tests.watching import wait_until

LOG_END = 3000


@pytest.fixture(scope="module", autouse=True)
def _two_at_a_time(request, tmp_path_factory):
    """Flower starts a ClientApp anew that took 30 s to start, without an end of the former.

    So a machine that is too slow for that many becomes slower and slower.
    """
    base = tmp_path_factory.getbasetemp().parent  # of all of pytest's processes
    with ExitStack() as held:

        def have(place: str) -> bool:
            with suppress(SpcacwError):
                held.enter_context(locked(base / place, "taken"))
                return True
            return False

        if hasattr(request.module, "pytestmark"):
            wait_until(lambda: have("federations-0") or have("federations-1"), seconds=3600)
        yield


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The directory of the silo that this process belongs to."""
    certificates.make_silo_key(tmp_path)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    return tmp_path


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        base = item.config._tmp_path_factory.getbasetemp()
        for log in sorted(base.rglob("*.log"), key=lambda path: path.stat().st_mtime)[-8:]:
            said = log.read_bytes()[-LOG_END:].decode(errors="replace")
            report.sections.append((f"end of {log.relative_to(base)}", said))
    return report
