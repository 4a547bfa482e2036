"""Files of federations: two at a time, and a failed test shows what their programs said last."""

import fcntl
import time
from contextlib import suppress

import pytest

LOG_END = 3000


@pytest.fixture(scope="module", autouse=True)
def _two_at_a_time(request, tmp_path_factory):
    """Flower starts a ClientApp anew that took 30 s to start, without an end of the former.

    So a machine that is too slow for that many becomes slower and slower.
    """
    if not hasattr(request.module, "pytestmark"):
        yield
        return
    base = tmp_path_factory.getbasetemp().parent  # of all of pytest's processes
    with open(base / "federations-0", "a") as one, open(base / "federations-1", "a") as other:
        while True:
            for slot in (one, other):
                with suppress(BlockingIOError):
                    fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    yield
                    return
            time.sleep(0.5)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        base = item.config._tmp_path_factory.getbasetemp()
        for log in sorted(base.rglob("*.log"), key=lambda path: path.stat().st_mtime)[-8:]:
            said = log.read_bytes()[-LOG_END:].decode(errors="replace")
            report.sections.append((f"end of {log.relative_to(base)}", said))
    return report
