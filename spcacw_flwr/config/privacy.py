"""The run-config keys of differential privacy (``silos/privacy.py``)."""

from __future__ import annotations

from dataclasses import dataclass

from spcacw_flwr.config.declare import key

PASS, SAMPLED = "pass", "sampled"


@dataclass(frozen=True)
class PrivacyKeys:
    """How peers keep their data private (ours, not the paper's: docs/trust.md)."""

    privacy_noise: float = key(
        0.0,
        "z, standard deviation of the noise that private silos add to each gradient, in units of "
        "its sensitivity; 0 is off. A real silo's node config has the last word.",
        least=0,
    )
    privacy_silos: str = key(
        "", "Which peers are private where privacy-noise is above 0, as '2,3'; empty is all."
    )
    privacy_clip: str = key(
        "sample",
        "What a private silo clips to max-norm: the gradient of each sample (sensitivity 2C/b), or "
        "that of the batch (2C).",
        choices=("sample", "batch"),
    )
    privacy_batches: str = key(
        "pass",
        "How a private silo draws its batches: in passes over its data that the target could "
        "foretell, or freshly sampled, which it cannot (its ε needs the extra 'privacy').",
        choices=(PASS, SAMPLED),
    )
    privacy_delta: float = key(
        1e-5, "δ of the (ε, δ) that is reported; well below 1/n.", above=0, below=1
    )
