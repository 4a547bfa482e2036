"""Algorithm 1 of the paper (Kiselman and Levy, arXiv:2606.29322) as a readable loop over silos.

The package does the same for all silos at once (``spcacw_flwr/methods/spcacw.py``). A test checks
that both agree on the digits. ``python examples/algorithm1.py`` prints accuracy and α.
"""

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from spcacw_flwr import Config
from spcacw_flwr.silos.batches import batch_indices
from spcacw_flwr.silos.setup import setting_of
from spcacw_flwr.silos.streams import MODEL, stream

ETA, BETA, SMOOTHNESS, MOMENTUM, DECAY, MAX_NORM, BATCH = 0.05, 0.1, 2.0, 0.9, 5e-4, 1.0, 32


def project(v):
    """Return the point of the simplex that is nearest to v, (M,)."""
    u = np.sort(v)[::-1]
    thresholds = (np.cumsum(u) - 1) / np.arange(1, len(v) + 1)
    return np.maximum(v - thresholds[u > thresholds][-1], 0)


def leader(H, alpha, steps=20_000):
    """Return argmin αᵀHα over the simplex, by projected gradient descent."""
    for _ in range(steps):
        alpha = project(alpha - H @ alpha / np.linalg.norm(H, 2))
    return alpha


def gradient(model, x, y):
    """Return the clipped gradient g_t^(i) of a mini-batch, (d,)."""
    loss = cross_entropy(model(x), y)
    parts = torch.autograd.grad(loss, list(model.parameters()))
    g = torch.cat([part.flatten() for part in parts])
    return g * min(1.0, MAX_NORM / g.norm().item())


def train(setting, epochs, target=0, seed=0):
    """Return the model and α (M,) after ``epochs`` passes of the target over its data."""
    silos = [setting.train(i) for i in range(setting.num_silos)]
    torch.manual_seed(int(stream(seed, MODEL).integers(2**62)))
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    )
    w = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    alpha, bias, velocity = np.eye(len(silos))[target], torch.zeros(len(silos), len(w)), 0
    H, K = np.zeros((len(silos), len(silos))), -(-len(silos[target].y) // BATCH)
    for t in range(1, epochs * K + 1):
        rows = []
        for i, silo in enumerate(silos):  # every silo reports its gradient at w_{t−1}
            at = batch_indices(seed, i, t, len(silo.y), BATCH)
            rows.append(gradient(model, silo.x[at], silo.y[at]))
        G = torch.stack(rows)
        bias = (1 - BETA) * bias + BETA * (G - G[target])  # the bias estimates b̂_t^(i)
        B, D = bias.double().numpy(), G.double().numpy()
        H += B @ B.T + ETA * SMOOTHNESS * D @ D.T  # αᵀHα = Σ_t L̂_t(α)
        step = torch.from_numpy(alpha).float() @ G + DECAY * w  # Σ_i α_{t−1}^(i) g_t^(i)
        velocity = MOMENTUM * velocity + step
        w = w - ETA * velocity
        torch.nn.utils.vector_to_parameters(w, model.parameters())
        if t % K == 0:
            alpha = leader(H, alpha)  # every K rounds, α_t ← argmin Σ_{τ≤t} L̂_τ(α)
    return model, alpha


if __name__ == "__main__":
    digits = setting_of(Config.from_keys())
    trained, weights = train(digits, epochs=10)
    test = digits.test(0)
    print(f"{100 * test.mean(trained(test.x).argmax(1) == test.y):.2f} %", weights.round(3))
