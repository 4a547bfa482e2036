"""Texts and a Hugging Face classifier; use this file in place of hospitals/task.py."""

import torch
from transformers import DistilBertConfig, DistilBertForSequenceClassification

HOSPITALS = 4
NOTES = [
    ["no", "little", "some", "much", "severe"],
    ["pain", "fever", "cough", "swelling"],
    ["since", "after", "before"],
    ["surgery", "yesterday", "the fall", "last week"],
]
WORDS = {word: number for number, word in enumerate([w for some in NOTES for w in some])}


def load(silo):
    """Return notes as tokens (n, 4), and whether each is urgent; hospital 3 inverts the labels."""
    draw = torch.Generator().manual_seed(silo)
    words = [[some[i] for i in torch.randint(len(some), (400,), generator=draw)] for some in NOTES]
    x = torch.tensor([[WORDS[word] for word in note] for note in zip(*words, strict=True)])
    y = torch.tensor([note[0] in ("much", "severe") for note in zip(*words, strict=True)])
    if silo == 3:
        y = ~y
    return (x[:100], y[:100]), (x[100:], y[100:])


def network():
    """Return a small DistilBERT with random weights; its ``logits`` are the scores."""
    return DistilBertForSequenceClassification(DistilBertConfig(
        vocab_size=len(WORDS), dim=16, n_heads=2, n_layers=1, hidden_dim=32, num_labels=2,
        max_position_embeddings=4,
    ))  # fmt: skip
