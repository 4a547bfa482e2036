"""One data file for each silo, so that a real node needs only its own file.

    setting = "files", data-dir = "/where/this/node's/data/is", silos = 7, input-shape = "1,28,28"

``silo-<i>.safetensors`` holds ``train.x``, ``train.y`` and perhaps ``train.independent``. For a
silo that is tested (the target) it also holds ``test.x``, ``test.y`` and perhaps ``test.weight``.
``own`` describes them. ``silos/setting.py`` writes a file from tensors, or a silo of any setting.
"""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.silos.setting import SiloData, silo_file

from .own import OwnSilos


class SiloFiles(OwnSilos):
    """Your own data in files: ``silo-<i>.safetensors`` in ``data-dir``; ``silos`` is M.

    The true clusters are not known, so there is no Oracle.
    """

    name = "files"
    reads = ("silos", "classes", "input_shape")

    def _named(self) -> str:
        if not self.keys.data_dir:
            return "setting = 'files' (no data-dir is set)"
        return self.keys.data_dir

    def _untested(self, silo: int) -> str:
        return f"{self._path(silo)} has no test.x and test.y"

    def _function(self, silo: int) -> Any:
        """Return (train, test) of a silo."""
        parts = self._read(silo)
        independent = parts["train.independent"].item() if "train.independent" in parts else None
        train = SiloData(parts["train.x"], parts["train.y"], independent=independent)
        if "test.x" not in parts:
            return train, None
        return train, SiloData(parts["test.x"], parts["test.y"], parts.get("test.weight"))

    def _path(self, silo: int) -> Path:
        return silo_file(Path(self.keys.data_dir).expanduser(), silo)

    def _read(self, silo: int) -> dict[str, Tensor]:
        path = self._path(silo)
        try:
            path.open("rb").close()  # safetensors calls an unreadable file missing
            parts = load_file(path)
        except FileNotFoundError:
            raise SpcacwError(
                f"There is no {path}: set data-dir to the directory that holds it, or, if another "
                "node holds this silo, name this node's own silos in its node config and set "
                "input-shape."
            ) from None
        except (OSError, SafetensorError) as error:
            raise SpcacwError(f"{path} cannot be read: {error}.") from error
        pairs = (("train.x", "train.y"), ("test.x", "test.y"))
        if not set(pairs[0]) <= set(parts) or ("test.x" in parts) != ("test.y" in parts):
            raise SpcacwError(
                f"{path} holds {', '.join(sorted(parts)) or 'nothing'}: it must hold train.x and "
                "train.y, and may hold test.x and test.y."
            )
        return parts
