"""Where silos and method compute, how precisely, and whether the memory suffices.

Only networks and the silos' inner products use bfloat16. The outputs of networks, the loss, the
gradients, the bias estimates, L and the test figures are float32.
"""

import logging
import math
from functools import cache

import torch
from torch import Tensor

from spcacw_flwr.config.declare import Scarce, SpcacwError
from spcacw_flwr.config.keys import BF16, FLOAT32, TF32

log = logging.getLogger(__name__)
GIB = 2**30


def find_device(name: str, precision: str = FLOAT32) -> torch.device:
    """Return the device that the key ``device`` names; set the precision of float32 products.

    SpcacwError if PyTorch does not know the device or cannot use it here, or if it lacks the tf32
    asked for. bf16 without hardware support works, slower than float32; the log says so once.
    """
    try:
        device = torch.empty(0, device=name).device
        if device.type == "meta":
            raise RuntimeError("it has no numbers")
    except (RuntimeError, AssertionError) as error:  # a build without CUDA asserts
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise SpcacwError(
            f"device = {name!r} cannot be used here ({reason}): use 'cpu', or a device of PyTorch "
            "that this machine has, such as 'cuda'."
        ) from error
    if precision == TF32 and device.type != "cuda":
        raise SpcacwError(
            f"precision = 'tf32' is for GPUs, and device = {name!r} is none: use 'float32' or "
            "'bf16'."
        )
    if precision == BF16 and not has_bfloat16(device.type):
        _say_slow(name)
    # PyTorch's own default is tf32 for convolutions and float32 for matrix products.
    products = "tf32" if precision == TF32 else "ieee"
    torch.backends.fp32_precision = products  # type: ignore[attr-defined]
    return device


def need_room(silos: int, vectors: float, model: Tensor) -> None:
    """Check that ``vectors`` float32 vectors for each of M silos fit the device of ``model`` (d,).

    Scarce if they do not. A system that promises more memory than it has would end the process.
    """
    needed, free = 4 * silos * vectors * len(model), free_bytes(model.device)
    if needed > free:
        raise Scarce(
            f"The gradients and biases of {silos:,} silos, of {len(model):,} numbers each, need "
            f"{needed / GIB:.1f} GiB on {model.device}, where {free / GIB:.1f} are free: set the "
            "key sketch, or use fewer silos or a smaller model."
        )


def free_bytes(device: torch.device) -> float:
    """Return how many bytes of memory a device has free; infinite if unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        import psutil
    except ImportError:  # the engine needs only PyTorch and the scientific stack
        return math.inf
    return psutil.virtual_memory().available if device.type == "cpu" else math.inf


def has_bfloat16(kind: str) -> bool:
    """Say whether the hardware of this kind of device multiplies bfloat16 itself."""
    if kind == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if kind == "cpu":
        return any(there for name, there in torch.cpu.get_capabilities().items() if "bf16" in name)
    return True  # unknown


@cache
def _say_slow(name: str) -> None:
    log.warning("precision = 'bf16': device %r has no bfloat16 instructions, so that it computes "
                "the same more slowly than in float32.", name)  # fmt: skip
