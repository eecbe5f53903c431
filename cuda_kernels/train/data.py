"""What the models read: random tokens, and a text of our own, character by character."""

from pathlib import Path
from typing import NamedTuple

import torch

import cuda_kernels
import fa_ref


class Text(NamedTuple):
    """A text, and its characters as numbers."""

    name: str                                                       # where it is from
    characters: str                                                 # all different ones, in their order
    tokens: torch.Tensor                                            # (length,), int64


def text(device="cpu"):
    """The pages of docs/ and the README, if the packages lie in their repository; else the packages' own sources."""
    packages = [Path(package.__file__).parent for package in (fa_ref, cuda_kernels)]
    root = packages[0].parent
    name, files = "README.md and docs/", [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    if not (root / "README.md").exists() or len(files) == 1:
        name, files = "the sources of the two packages", sorted(file for x in packages for file in x.rglob("*.py"))
    return encoded(name, "\n".join(file.read_text(encoding="utf-8") for file in files), device)


def encoded(name, words, device="cpu"):
    """A Text."""
    characters = "".join(sorted(set(words)))
    number = {character: n for n, character in enumerate(characters)}
    return Text(name, characters, torch.tensor([number[character] for character in words], device=device))


def pieces(tokens, size, generator):
    """(B, N + 1) of a text's tokens: pieces from anywhere. The generator is the CPU's, so that all devices agree."""
    check(tokens, size)
    starts = torch.randint(len(tokens) - size.N, (size.B, 1), generator=generator).to(tokens.device)
    return tokens[starts + torch.arange(size.N + 1, device=tokens.device)]


def check(tokens, size):
    """ValueError for a text (length,) that is too short for a piece."""
    if len(tokens) <= size.N:
        raise ValueError(f"the text has {len(tokens)} characters, and a piece needs {size.N + 1}")


def random(size, vocabulary, device):
    """(B, N + 1) random tokens, the same in every run."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(vocabulary, (size.B, size.N + 1), generator=generator).to(device)
