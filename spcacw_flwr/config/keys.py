"""The tables of run-config keys: every key's default, range, and meaning.

"Paper" is Kiselman & Levy, SP-CACW, arXiv 2606.29322. "READING" is the project's list of points
that the paper leaves open, with the project's reading of each.
"""

import math
from dataclasses import dataclass
from typing import Any

from spcacw_flwr.config.declare import key
from spcacw_flwr.config.registry import SETTINGS, SOLVERS

ENGINES = ("ray", "in-process")
PASS, SAMPLED = "pass", "sampled"
MESSAGE, STREAM = "message", "stream"
FLOAT32, FLOAT16, BFLOAT16, INT8 = "float32", "float16", "bfloat16", "int8"
TF32, BF16 = "tf32", "bf16"
METRICS = ("accuracy", "balanced", "auroc", "calibration", "log-loss", "brier", "r2", "mse")
MOST_SILOS = 1_000_000
WIRES = (FLOAT32, FLOAT16, BFLOAT16, INT8)
PRECISIONS = (FLOAT32, TF32, BF16)


@dataclass(frozen=True)
class RunKeys:
    """What to run, for how long, and where its results go."""

    setting: str = key(
        "digits-relabel",
        "Who holds what: " + ", ".join(SETTINGS) + ", or 'package.module:Class' of your own.",
    )
    method: str = key("spcacw-plus", "The method of the target silo; 'spcacw methods' lists them.")
    own: str = key(
        "",
        "Keys of a method or setting of your own, tables in JSON: '--set my-method.key=…' puts "
        "them here.",
    )
    seed: int = key(0, "Seed of the split, the initial model and every batch.", least=0)
    target: int = key(0, "The target silo, client 0 in the paper; 0…M−1.", least=0)
    holdout: float = key(
        0.0,
        "Share of the target's training data to hold out and evaluate on in place of its test data "
        "(READING 21): for tuning; 0 is off.",
        least=0,
        below=1,
    )
    engine: str = key(
        "ray",
        "What computes the rounds: ray, a Flower simulation (real silos are Flower's too), or "
        "in-process, one process without messages.",
        choices=ENGINES,
    )
    epochs: int = key(50, "Passes of the target over its own data (paper: 50 on MNIST).", least=1)
    nodes: int = key(
        0,
        "Simulated Flower nodes, which share the silos; 0 is one for each core, or one where "
        "rounds are small.",
        least=0,
    )
    node_gpus: float = key(
        0.0,
        "GPUs that Ray gives to each simulated node, for device = cuda; .5 lets two share one.",
        least=0,
    )
    device: str = key(
        "cpu", "Where silos and method compute: cpu, cuda, cuda:1, … (PyTorch's names)."
    )
    precision: str = key(
        FLOAT32,
        "Numbers that are multiplied: float32; tf32, on GPUs; bf16: bfloat16 in networks and in "
        "inner products of silos, while loss, gradients and biases are float32.",
        choices=PRECISIONS,
    )
    threads: int = key(
        0,
        "CPU threads of the in-process engine, and of each end of a stream; 0 is one where a round "
        "is small, so that runs side by side do not wait for each other, and PyTorch's own number "
        "elsewhere.",
        least=0,
    )
    output: str = key("", "Directory of the results, absolute; empty is a dated default.")
    resume: str = key(
        "", "Directory of a run to go on with, from its last checkpoint (docs/run.md)."
    )
    checkpoint_every: int = key(
        0,
        "Rounds between two checkpoints, besides those at a stop and at the end; 0 is ends of "
        "epochs, at most every 10 s, -1 is none at all.",
        least=-1,
    )
    compare_alone: bool = key(
        True, "Also train the target alone (α = e₀, same seed and batches) for comparison."
    )
    metric: str = key(
        "accuracy",
        "What a run is judged by, on the target's test data: its best epoch, tables and report; r2 "
        "and mse are for labels that are numbers, auroc and calibration for two classes.",
        choices=METRICS,
    )
    tensorboard: bool = key(False, "Write TensorBoard scalars next to the other results.")
    mlflow: bool = key(
        False, "Log to MLflow: MLFLOW_TRACKING_URI, or mlflow.db next to the run's directory."
    )
    wandb: bool = key(False, "Log to Weights & Biases: WANDB_PROJECT, or the project spcacw.")
    node_timeout: float = key(
        120.0, "Seconds to wait for nodes that hold all silos before giving up.", above=0
    )
    round_timeout: float = key(
        120.0, "Seconds a silo has to answer a round; later it counts as silent.", above=0
    )


@dataclass(frozen=True)
class TrainingKeys:
    """How gradients are made and steps are taken (paper, appendix Network Architectures)."""

    eta: float = key(0.05, "η, the target's step size (Eq. (1)).", above=0)
    momentum: float = key(0.9, "μ, momentum of the target's optimiser.", least=0, below=1)
    weight_decay: float = key(5e-4, "λ, weight decay of the target's optimiser.", least=0)
    max_norm: float = key(1.0, "Largest norm of a gradient; 0 switches clipping off.", least=0)
    clip: str = key(
        "silo",
        "Who clips: every silo its own gradient (READING 7), or the target the weighted sum.",
        choices=("silo", "aggregate"),
    )
    batch_size: int = key(32, "Samples in a silo's mini-batch ξ.", least=1)
    model: str = key(
        "mlp",
        "The network: logistic (one linear layer), mlp, vgg16 (images of 32 × 32), char-lstm "
        "(symbols), or 'package.module:function' of your own: input shape, classes → nn.Module.",
    )
    hidden: int = key(64, "Hidden units of the MLP (paper: 64).", least=1)
    width: float = key(
        1.0,
        "Factor of every hidden width of mlp, vgg16 and char-lstm, for runs on a CPU (paper: 1).",
        above=0,
    )
    loss: str = key(
        "cross-entropy",
        "ℓ: cross-entropy, squared-error (labels that are numbers), or 'package.module:function' "
        "of your own: outputs, labels → the loss of each sample.",
    )
    participation: float = key(
        1.0, "p, chance that a peer is asked in a round (Proposition 1).",
        above=0, most=1,
    )  # fmt: skip

    @property
    def longest(self) -> float:
        """Return the norm that each silo clips its gradient to; infinite if silos do not clip."""
        return self.max_norm if self.clip == "silo" and self.max_norm > 0 else math.inf


@dataclass(frozen=True)
class TrustKeys:
    """Which replies of a silo are trusted (docs/trust.md)."""

    norm_bound: float = key(
        0.0,
        "Largest norm of a gradient that is used, a longer one is dropped; 0 is max-norm where "
        "silos clip, and no bound elsewhere.",
        least=0,
    )
    max_strikes: int = key(
        3,
        "Strikes that put a silo into quarantine: a round with a reply that cannot be used adds "
        "one, a round of good replies takes one away; 0 never does.",
        least=0,
    )
    quarantine_probe: float = key(
        0.1, "Chance that a silo in quarantine is asked in a round, to see if it is well.",
        least=0, most=1,
    )  # fmt: skip
    guard: int = key(
        0,
        "F ≥ 2: one in F of the target's samples is kept apart to judge whether peers did harm; if "
        "so, the target ends with the model that it trained alone (ours: docs/trust.md). 0 is off.",
        least=0,
    )
    guard_finish: float = key(
        0.2,
        "Share of the epochs, the last ones, in which the target goes on alone after the guard's "
        "judgement, with all of its data.",
        above=0,
        below=1,
    )


@dataclass(frozen=True)
class PartitionKeys:
    """Keys of several settings; the defaults are those of digits-relabel."""

    data_dir: str = key(
        "",
        "Directory that holds the data sets, each here or in a folder of its own, as mnist/ "
        "(docs/settings.md); may be read-only; empty, or what it lacks: the cache's data/. "
        "setting = 'files': where this node's silo-<i>.safetensors lie.",
    )
    silos: int = key(
        0,
        "M, the number of silos; 0: as cluster-sizes says (paper: 89 clients for the rotation, "
        "n = 15 or 30 for Shakespeare; READING rows 11 and 20).",
        least=0,
        most=MOST_SILOS,
    )
    samples_per_silo: int = key(
        200,
        "n, training samples of a silo (at most, where sizes differ); 0: as many as "
        "the setting can give. The paper gives none (READING row 8: on MNIST, chosen such that the "
        "target's local training alone matches the paper's Local; row 15: all of CIFAR-100).",
        least=0,
    )
    test_samples: int = key(
        0,
        "Test samples of each silo at most, drawn by the seed; 0: all (READING rows 12 and 13).",
        least=0,
    )
    input_scale: str = key(
        "unit",
        "unit: pixels in [0, 1]; standard: then minus the training mean, over the training "
        "standard deviation (.1307 and .3081 for MNIST; CIFAR-100's per channel). The paper is "
        "silent (READING row 8).",
        choices=("unit", "standard"),
    )
    cluster_sizes: str = key(
        "3,2,2",
        "Silos in each true cluster of a relabelling or latent-cluster setting, in order, the "
        "first cluster first; the paper says 7 silos in 3 clusters (READING row 9; 2,2,3 is the "
        "other reading), and for CIFAR-100 20 in 4.",
    )
    label_permutation: str = key(
        "shift",
        "Labels of cluster k: shift: y → (y + k) mod C; random: a seeded random permutation; "
        "cluster 0 keeps its labels in both (READING row 10).",
        choices=("shift", "random"),
    )
    silo: str = key(
        "",
        "setting = 'own': your function silo → (train, test) by its import path, "
        "package.module:function.",
    )
    classes: int = key(
        10,
        "setting = 'own' or 'files': C, the number of labels, which are 0 … C−1; 1 where labels "
        "are numbers (float), and the model predicts one.",
        least=1,
    )
    input_shape: str = key(
        "",
        "setting = 'own' or 'files': shape of one input, as 1,28,28; empty: that of silo 0, which "
        "every node must then be able to load.",
    )
    own: Any = None
    """The values of the chosen setting's own keys (:attr:`Setting.Keys`); not a key itself."""


@dataclass(frozen=True)
class SPCACWKeys:
    """Hyper-parameters of SP-CACW (Algorithm 1; appendix Practical Algorithmic Details)."""

    beta: float = key(0.1, "β, smoothing of the bias estimates b̂ (Eq. (3)).", above=0, most=1)
    beta_schedule: str = key(
        "constant",
        "β_t = β, or harmonic: β_t = 1/t, the sample mean of the bias lemma (READING 1).",
        choices=("constant", "harmonic"),
    )
    t_start: int = key(
        1, "T_start, the first round that counts in the cumulative cost (Eq. (13)).",
        least=1,
    )  # fmt: skip
    update_every: int = key(
        0, "K, rounds between updates of α; 0 is one epoch of the target.", least=0
    )
    solver: str = key(
        "ftl",
        "Who learns α: the leader of the exact cumulative cost (ftl) or of FTAL's rank-one "
        "surrogates (ftal), online Newton steps (ons), exponentiated gradient (eg).",
        choices=tuple(SOLVERS),
        paths=True,
    )
    g_max: float = key(
        0.0,
        "g_max, bound on gradient norms in FTAL's and ONS's constants and the regret bound; 0 is "
        "max-norm/√p where silos clip and none adds noise, and the largest norm seen elsewhere.",
        least=0,
    )
    probe: float = key(
        1.0,
        "Chance that a peer of weight 0 is asked in a round (of the p of participation): less "
        "traffic, later returns.",
        above=0,
        most=1,
    )
    diagnostics: bool = key(
        True,
        "Log regret, and each silo's bias, noise and closed-form weight, in federations of up to "
        "1,000 silos (O(M²) memory and time).",
    )
    sketch: int = key(
        0,
        "k, dimension of the random sketch in which biases and inner products are kept, for "
        "federations of thousands; 0 keeps them exactly.",
        least=0,
    )
    smoothness: float = key(0.0, "L, the smoothness of the target's loss; 0 estimates it.", least=0)
    curvature: str = key(
        "largest",
        "What L is estimated by: the largest curvature of the target's loss (READING 5), or that "
        "along its mini-batch noise (ours: docs/theory.md).",
        choices=("largest", "noise"),
    )
    smoothness_interval: int = key(10, "Rounds between two estimates of L.", least=1)
    smoothness_iterations: int = key(
        10, "Largest number of power iterations per estimate.", least=1
    )
    smoothness_decay: float = key(
        0.9,
        "Share of the old value when a new estimate of L arrives (READING 5).",
        least=0,
        below=1,
    )


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


@dataclass(frozen=True)
class TransportKeys:
    """How the target and the silos talk; ``wire`` and ``local-batches`` change the numbers."""

    exchange: str = key(
        MESSAGE,
        "How real silos answer: message, a Flower message for each question (seconds each), or "
        "stream, one gRPC stream for the run that Flower starts and ends.",
        choices=(MESSAGE, STREAM),
    )
    stream_address: str = key(
        "127.0.0.1:0",
        "host:port where the target's exchange service listens and silos connect; port 0 is any "
        "free one.",
    )
    stream_certificate: str = key(
        "",
        "PEM file of the exchange service's certificate, on the target's machine; empty is "
        "plaintext, on a loopback address only. Nodes name their CA as root-certificates in their "
        "node config.",
    )
    stream_key: str = key("", "PEM file of that certificate's private key.")
    wire: str = key(
        "float32",
        "Representation of gradients from silo to target, under every engine: float32, float16, "
        "bfloat16, or int8 (stochastic rounding, unbiased).",
        choices=WIRES,
    )
    local_batches: int = key(
        1,
        "Mini-batches that a silo averages for one answer. More than 1 means fewer messages and "
        "fewer, larger steps: another algorithm than the paper's.",
        least=1,
        most=10_000,
    )


SECTIONS: dict[str, type] = {
    "run": RunKeys, "training": TrainingKeys, "trust": TrustKeys, "partition": PartitionKeys,
    "spcacw": SPCACWKeys, "transport": TransportKeys, "privacy": PrivacyKeys,
}  # fmt: skip
"""The tables by their names in :class:`~spcacw_flwr.config.config.Config`, in order."""
