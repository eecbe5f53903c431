"""A small GPT that is told with each call which attention to use: the same weights can be tried with all of them."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Attention, then two layers on each token alone; both are added to x (B, N, hidden)."""

    def __init__(self, hidden, d):
        super().__init__()
        self.d = d
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.wide, self.narrow = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x, attention):
        """The next x (B, N, hidden). attention: a function of q, k, v (B, H, N, d), as `attentions` has them."""
        parts = self.qkv(self.norm1(x)).chunk(3, dim=2)
        q, k, v = (part.unflatten(2, (-1, self.d)).transpose(1, 2) for part in parts)  # (B, H, N, d), strided
        O = attention(q, k, v)                                      # the one line
        x = x + self.out(O.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.norm2(x))))


class GPT(nn.Module):
    """Layers of `Block` between an embedding of tokens and places and a linear layer to the next token.

    hidden must be a multiple of d; sequences have at most N tokens, each smaller than `vocabulary`.
    """

    def __init__(self, vocabulary, layers, hidden, d, N):
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, hidden), nn.Embedding(N, hidden)
        self.blocks = nn.ModuleList(Block(hidden, d) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, vocabulary)
        self.apply(small)

    def forward(self, tokens, attention):
        """The loss of tokens (B, N + 1), int64: the mean cross-entropy, in nats, of each token given those before."""
        seen, wanted = tokens[:, :-1], tokens[:, 1:]
        x = self.token(seen) + self.place(torch.arange(seen.shape[1], device=seen.device))
        for block in self.blocks:
            x = block(x, attention)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), wanted.flatten())


def small(module):
    """Weights to start with: normal, 0.02; biases 0."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
        if getattr(module, "bias", None) is not None:
            nn.init.zeros_(module.bias)
