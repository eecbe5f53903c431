"""A model, its optimizer, and a step: the same for every attention."""

import torch

from cuda_kernels.train.model import GPT


class Trainer:
    """A GPT of a `sizes.Size` on a device. half: products in bfloat16 (torch.autocast); weights are float32 anyway."""

    def __init__(self, size, vocabulary, device, half=True, seed=0):
        torch.manual_seed(seed)
        with torch.device(device):
            self.model = GPT(vocabulary, size.layers, size.hidden, size.d, size.N)
        self.device, self.half = device, half
        self.optimizer = torch.optim.AdamW(self.model.parameters(), betas=(0.9, 0.95), fused=device == "cuda")

    def step(self, tokens, attention, rate=3e-4):
        """Forward, backward, update. tokens (B, N + 1); returns the loss before the update, a tensor."""
        self.optimizer.zero_grad()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast(self.device, torch.bfloat16, enabled=self.half):
            loss = self.model(tokens, attention)
        loss.backward()
        self.optimizer.step()
        return loss.detach()
