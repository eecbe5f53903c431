"""The loss of a small model that learns a text, step by step: with each attention in bfloat16, and in float32."""

import torch

from cuda_kernels.train import data
from cuda_kernels.train.attentions import ATTENTIONS
from cuda_kernels.train.targets import TRUTH  # eager attention, and everything else, in float32
from cuda_kernels.train.trainer import Trainer

RATE, RISES = 1e-3, 20                                              # the rate of AdamW, after so many steps of rising
PARTS = 10                                                          # of a run, for the progress
SEED = 1


def measured(size, steps, device, step=lambda what: None, attentions=ATTENTIONS):
    """{"size", "text", "characters", "different": how many of them differ, "losses": {name: [of each step]}}; names are
    those of the attentions, and "float32"."""
    text = data.text(device)
    runs = {name: (attention, True) for name, attention in attentions.items()}
    runs[TRUTH] = attentions["eager"], False
    losses = {name: run(size, text, attention, half, steps, device, lambda part, name=name: step(
        f"learning to write, {name}: {part} of {PARTS}")) for name, (attention, half) in runs.items()}
    return {"size": size._asdict(), "text": text.name, "characters": len(text.tokens),
            "different": len(text.characters), "losses": losses}


def run(size, text, attention, half, steps, device, step=lambda part: None):
    """The loss of each step. Weights to start with, and the pieces of the text, are the same in every run."""
    trainer = Trainer(size, len(text.characters), device, half, SEED)
    generator, losses, part = torch.Generator().manual_seed(SEED), [], 0
    for n in range(steps):
        if part * steps <= n * PARTS:
            part += 1
            step(part)
        tokens = data.pieces(text.tokens, size, generator)
        losses.append(trainer.step(tokens, attention, RATE * min(1, (n + 1) / RISES)))
    return torch.stack(losses).tolist()
