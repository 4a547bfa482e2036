"""Where the tests find real data, and the small configurations they share."""

import os
import resource
import signal
import warnings
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before PyTorch: two processes share the cores

import pytest
import torch
import typer
from typer.testing import CliRunner, Result

from spcacw_flwr.cli import app
from spcacw_flwr.config.config import Config
from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.engine.loop import play
from spcacw_flwr.engine.simulate import method_for
from spcacw_flwr.methods.base import Method
from spcacw_flwr.silos.pool import SiloPool
from spcacw_flwr.silos.protocol import Replies, Request
from spcacw_flwr.silos.setup import checked_setting

warnings.filterwarnings("ignore", category=FutureWarning, module="torch")

# A shell without job control has its background jobs ignore Ctrl-C, which some tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def data_at(*files: str) -> str:
    """The data sets' directory, if it holds these files: SPCACW_DATA_DIR, or ../shared/data."""
    root = Path(os.environ.get("SPCACW_DATA_DIR", Path(__file__).parents[2] / "shared" / "data"))
    if lacking := [name for name in files if not (root / name).exists()]:
        pytest.skip(f"no {lacking[0]} in {root}; name the data's directory in SPCACW_DATA_DIR")
    return str(root)


@pytest.fixture(scope="session")
def mnist() -> str:
    return data_at("mnist/MNIST/raw")


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """No server answers, and the home has no data."""
    words = "Error downloading:\nTried here, got:\n<Name or service not known>\n"
    for loader in ("MNIST", "CIFAR100"):
        monkeypatch.setattr(f"torchvision.datasets.{loader}", Mock(side_effect=RuntimeError(words)))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CACHE_HOME", "SPCACW_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)


def answer(pool: SiloPool, request: Request) -> Replies:
    """What silos answer to a request, as it arrives at the target."""
    return pool.answer(request).replies


def spcacw(*words: object, columns: int = 400, of: typer.Typer = app) -> Result:
    """What a command does in this process, and says on a terminal of so many columns."""
    return CliRunner().invoke(of, [*map(str, words)], env={"COLUMNS": str(columns)})


def ran(*words: object, code: int = 0, columns: int = 400, of: typer.Typer = app) -> str:
    """What a command says that ends with this code."""
    done = spcacw(*words, columns=columns, of=of)
    assert done.exit_code == code, done.output
    return done.output


@contextmanager
def one_sentence(*words: str):
    """What is done here fails with one sentence for people, in which all ``words`` are."""
    with pytest.raises(SpcacwError) as error:
        yield error
    assert [word for word in words if word not in str(error.value)] == []
    assert "\n" not in str(error.value)


@contextmanager
def limited(most: int):
    """No file can grow beyond so many bytes: the system says so to whoever writes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def contents(directory: Path) -> dict[Path, bytes]:
    """What is in each file below a directory."""
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def make_pool(config: Config) -> SiloPool:
    setting = checked_setting(config)
    return SiloPool(config, setting, range(setting.num_silos))


def make_method(config: Config, pool: SiloPool):
    return method_for(config, pool.describe(), pool)


def played(config: Config, rounds: int, pool: SiloPool | None = None) -> Method:
    """The method after so many rounds of a loop over the core, without an engine."""
    pool = pool or make_pool(config)
    method = make_method(config, pool)
    for round_ in range(1, rounds + 1):
        play(pool, method, round_)
    return method


@pytest.fixture(autouse=True)
def _one_thread():
    """Small tensors are slower on two threads, and one thread sums in one order."""
    torch.set_num_threads(1)
