# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 13 The kernel ladder
#
# **Claim.** FlashAttention-2 is not one idea. Between FlashAttention-1 as its paper writes it down and a kernel as fast
# as the library's there are eight steps, and most of the speed comes from steps that no formula shows.
#
# Time: about 30 minutes. Before: [10](10_warps_and_multiprocessors.ipynb). You need: what a block, a warp and shared
# memory are ([the GPU in one page](../docs/gpu.md)), and what a product of a warp is
# ([tensor cores in one page](../docs/tensor_cores.md)). No GPU: the kernels run in a simulator here, and the times are
# those of one run on an NVIDIA H200, which is kept beside the pages.

# %%
import os

os.environ["FA_REF_CUDA"] = "sim"

# %%

import difflib
import importlib
import inspect
import json
from pathlib import Path

import numpy as np

import fa_ref
from course import show
from course.pictures import figure
from cuda_kernels import ladder
from cuda_kernels.ladder import run
from exercises import nb13

RUNGS = {name: importlib.import_module(f"cuda_kernels.ladder.{name}") for name in ladder.NAMES}
RUN = json.loads(Path("../docs/performance/ladder.json").read_text(encoding="utf-8"))

# %% [markdown]
# ## Nine kernels
#
# Each is a file of its own, with the same numbered steps. What a rung brings stands in the first line.

# %%
for name, rung in RUNGS.items():
    print(name, inspect.getdoc(rung).splitlines()[0].partition(": ")[2])

# %% [markdown]
# All compute the same function. Here each runs in the simulator, with two warps: one head of 64 queries and keys,
# causal.

# %%
rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((1, 1, 64, 64)).astype(np.float16) for _ in range(3))
truth = fa_ref.forward(*(x.astype(np.float64) for x in (q, k, v)), causal=True).out

for name in RUNGS:
    out, lse = run.forward(name, q, k, v, causal=True, tiles=(16, 2, 32))
    error = abs(out.astype(np.float64) - truth).max()
    print(f"{name}  largest error {error:.5f}")
    assert error < 4e-3

# %% [markdown]
# ## What changes from one to the next
#
# Two rungs differ by one idea, and `diff` shows it. From rung 4 to rung 5, for example, only the places of numbers on
# chip change. Without comments and docstrings:

# %%
def code_of(name):
    """The lines of a rung's kernel that compute something."""
    lines = inspect.getsource(RUNGS[name].make_forward).split("\n")
    return [line.split("  #")[0].rstrip() for line in lines if line.strip() and not line.strip().startswith("#")]


def changes(before, after):
    """Print what goes and what comes."""
    for line in difflib.unified_diff(code_of(before), code_of(after), n=0, lineterm=""):
        if line[:2] not in ("--", "++", "@@"):
            print(line)


changes("r4", "r5")

# %% [markdown]
# ## Guess first
#
# Before anything was measured, a guess was written into each file: how many times as fast as the rung before, for
# causal attention with d = 128 and N = 4096, and why. **Guess yourself** before you read on: which three rungs bring
# most?
#
# `WHY` counts cycles of a multiprocessor for two tiles: what must be computed, what must be moved, and what cannot go
# on at the same time.

# %%
for name, rung in list(RUNGS.items())[1:]:
    print(f"{name}  × {rung.PREDICTED:<5} {' '.join(rung.WHY.split())}")

# %% [markdown]
# ## What it was

# %%
def row(name, d=128, causal=True, spills=False):
    """What was measured of a rung."""
    return next(r for r in RUN["rows"]
                if (r["rung"], r["d"], r["causal"], r["spills"]) == (name, d, causal, spills))


print(RUN["on"], "\n")
print("rung        ms   × the rung before   guessed   × torch's FLASH   registers   KiB on chip")
for n, name in enumerate(RUNGS):
    now = row(name)
    factor = "" if n == 0 else f"{row(ladder.NAMES[n - 1])['ms'] / now['ms']:.2f}"
    guess = "" if n == 0 else f"{RUNGS[name].PREDICTED:.2f}"
    print(f"{name:4} {now['ms']:9.2f} {factor:>12} {guess:>15} {now['flash_ms'] / now['ms']:14.3f} "
          f"{now['registers']:>15} {now['shared'] / 1024:>10.0f}")

# %%
drawn, axes = figure(8, 3.6)
names = list(RUNGS)
for d, marker in ((64, "o"), (128, "s")):
    speeds = [row(name, d)["flash_ms"] / row(name, d)["ms"] for name in names]
    axes.plot(names, speeds, marker=marker, label=f"d = {d}, causal")
axes.axhline(1, color="#888888", linewidth=1, linestyle="--")
axes.set_yscale("log")
axes.set_ylabel("× torch's FLASH, in the same run")
axes.legend()
show(drawn, "The speed of nine rungs as a multiple of torch's FLASH backend, on a logarithmic scale, for d = 64 and "
            "d = 128. It rises from less than a hundredth at rung 0 to about one at rung 8; the steps at rungs 2 to 5 "
            "are large, rung 6 goes down a little, rungs 7 and 8 go up again.")

# %% [markdown]
# ## What the guesses missed
#
# - **Rungs 2 and 3**, which are what the FlashAttention-2 paper is about, brought more than was guessed: blocks for all
#   multiprocessors, and nothing to tell each other.
# - **Rung 4** was guessed to be small and was not. 2-byte copies are not only many instructions, they also keep a
#   thread from having much under way at once.
# - **Rung 5** moves nothing less and computes nothing less. Only places change, so that 8 rows no longer meet in the
#   same banks. In time it is the largest step of all.
# - **Rung 6** made it slower. Copies that run ahead need room for two tiles, and with that room went a third block from
#   every multiprocessor. That block had filled the waiting times already. In rung 8, whose blocks are larger, there is
#   no third block to lose.
# - **Rung 8** has one more pair of tiles in its file, which do not fit into registers. What that costs:

# %%
good, spilled = row("r8"), row("r8", spills=True)
print(f"local memory of a thread: {good['local']} and {spilled['local']:,} bytes")
print(f"time: {good['ms']:.2f} and {spilled['ms']:.2f} ms, {spilled['ms'] / good['ms']:.0f} times as long")

# %% [markdown]
# ## Exercise: places without conflicts
#
# Shared memory has 32 banks of 4 bytes: 8 groups of 16 bytes. A row of a tile has `chunks` chunks of 16 bytes, and
# rows lie one after another, so chunk place `p` of row `r` is in group `(r * chunks + p) % 8`. `ldmatrix` reads chunk
# `c` of 8 neighbouring rows at once. If two of them are in one group, it takes turns.
#
# Write `places(chunks)`, which returns an array (8, chunks): the place of chunk `c` in row `r`. In each row every
# place is taken once, and for each `c` the 8 rows are in 8 different groups. `chunks` is 4, 8, 16 or 32.

# %% tags=["stub"]
def places(chunks):
    """The place of chunk c in row r, for 8 rows: whole numbers (8, chunks)."""
    raise NotImplementedError("places is yours to write")


# %%
nb13.places(places)

# %% [markdown]
# <details><summary>Hint 1: rows of 8 chunks</summary>
#
# Row `r` begins in group 0, for every `r`. So row `r` must exchange its chunks in a way of its own, of 8 ways. For
# every `r`, `c ^ r` (exclusive or of the bits) takes each place once.
# </details>
#
# <details><summary>Hint 2: rows of 4 chunks</summary>
#
# Two rows fill all groups. Even rows begin in group 0, odd rows in group 4, so only rows 0, 2, 4, 6 can meet, and rows
# 1, 3, 5, 7. There are 4 ways to exchange 4 chunks with exclusive or.
# </details>
#
# The answer: [solutions/nb13.py](solutions/nb13.py). What the kernels do: `places` in `cuda_kernels/swizzled.py`.

# %% [markdown]
# ## What to take along
#
# - Order of loops first, then who tells whom what, then how memory is read. Each is worth a factor.
# - The same numbers in other places on chip can be several times as fast.
# - A guess with a reason is worth writing down: where it is wrong you learn something.
# - Room on chip and registers are shared by blocks. What helps one block may cost another its place.
#
# On a GPU of your own: `python -m cuda_kernels ladder`. More numbers: [performance](../docs/performance.md).
