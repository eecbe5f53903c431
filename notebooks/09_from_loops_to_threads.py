# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 09 From loops to threads
#
# **Claim.** A GPU kernel is the loop that you know, with each statement about a tile shared out among threads. What is
# new is one thing only: the barrier.
#
# Time: about 40 minutes, and 20 more for the debugger or the detective, which come last. Before:
# [05](05_flash_attention_2.ipynb). You need: the loop of FlashAttention-2. No GPU: the kernels run in a simulator, as
# Python, in this notebook. [docs/gpu.md](../docs/gpu.md) says in one page what thread, block and shared memory are.
#
# The simulator must be chosen before Numba is imported. If a cell below says "comes too late", restart the kernel.

# %%
import os

os.environ["FA_REF_CUDA"] = "sim"

# %%
import cuda_kernels  # isort: skip  (before Numba)

import numpy as np
from numba import cuda

from course import matrix, show
from course.pictures import figure
from cuda_kernels import simulator
from detective import case4
from exercises import nb09
from exercises.kernels import noted
from exercises.nb09_shown import barriers, beside, numbered, session, without
from fa_ref.debug import tiny

# %% [markdown]
# The problem is small enough for counting: 4 queries, 6 keys, d = 2, tiles of 2 queries × 3 keys, scale 1.

# %%
Q, K, V, rule = tiny()
q, k, v = (x[None, None] for x in (Q, K, V))                             # a batch of one head
how = dict(kernel="fa2", block_q=2, block_k=3, scale=1.0)
out, lse = cuda_kernels.forward(q, k, v, threads=1, **how)
print(np.round(out[0, 0], 3))

# %% [markdown]
# ## The same steps, side by side
#
# `cuda_kernels/fa2.py` has the steps of `fa_ref/fa2.py`, number for number. Three differences:
#
# - The loop `for i in range(Tr)` is gone. There is a **block** for each tile of queries, and the block knows its `i`.
# - A block has `T` **threads**. All run the same lines. Each knows its own number `t`.
# - `Qi`, `Kj`, `Vj`, `Sij`, `acc`, `m`, `l` lie in **shared memory**: one array for all threads of the block.
#
# `Br`, `Bc` are the sizes of a full tile, fixed when the kernel is compiled; `br`, `bc` are those of this one, which
# may be the last. `visible` and `score` are the rule of `fa_ref/scores.py` (mask, scale, softcap) as functions of one
# element; `zero` and `minus_inf` are numbers in the accumulator's dtype.
#
# What NumPy does to a tile in one statement is a loop over its elements here. Step (4), the scores:

# %%
beside(4)

# %% [markdown]
# Steps (5) to (8) go row by row. A row has one thread, which finds its maximum, its P and its sum:

# %%
beside(5, 8)

# %% [markdown]
# ## One thread
#
# With `T = 1` the loop `range(t, br * Bc, T)` visits every element, and the kernel is a sequential program again. You
# can stop in it with any debugger of Python. Here is a session in pdb; what follows `(Pdb)` was typed. `c` goes on to
# the next breakpoint. The command has set one at each barrier where a step is done: four of the five that you will meet
# below. (A barrier is a line `cuda.syncthreads()`.)

# %%
session(["p t, T, i, j", "p Qi", "p Kj", "p Sij", "c", "p Sij", "c", "p Sij", "p m, l"])

# %% [markdown]
# Shared memory is NaN here until something is written to it. The last column of `Qi`, `Kj` and `Sij` stays NaN: one
# column more than needed, for the sake of speed on a GPU.
#
# Check one score by hand: query 0 is `(1, 0)`, key 0 is `(1, 1)`, so `Sij[0, 0] = 1`. Where is 2, the score of query 1
# and key 1?
#
# You can do the same in the debugger that you like best: see [the end](#With-20-minutes-more).

# %% [markdown]
# ## Eight threads
#
# The simulator plays each thread of a block in turn: one runs until it must wait, then the next. So a breakpoint stops
# once for each thread. `disable 1` takes the first breakpoint away, the barrier before step (4). So it stops at the one
# after it. `e` is the last element that the thread had. (Threads 6 and 7 have no score here, so `p e` is a NameError
# there.)

# %%
session(["disable 1", "c", "p t, e", "p Sij", "c", "p t, e", "p Sij", "c", "p t, e", "p Sij"], "--threads", "8")

# %% [markdown]
# Thread by thread, a score more is there. This is why they must wait: if thread 0 went on to step (5) at once, it would
# take the maximum of a row of which only one score is there.
#
# ## Who does what
#
# `for e in range(t, br * Bc, T)` is a **thread-stride loop**: thread `t` takes the elements t, t + T, t + 2T, …, where
# `e` counts the elements of the tile row by row.
#
# Predict, for a tile of 4 × 6: with `T = 8`, which thread writes `Sij[1, 2]`? With `T = 3`, how many elements has
# thread 0, and which? The run notes who wrote what:

# %%
def writers(T):
    """Which thread writes which element of Sij in step (4), in a tile of 4 × 6."""
    with noted() as (_, notes):
        cuda_kernels.forward(q, k, v, kernel="fa2", threads=T, block_q=4, block_k=6, scale=1.0)
    owner = np.full((4, 6), -1)
    for note in notes:
        if note.array == "Sij" and note.action == "writes" and note.phase == 2:       # after two barriers: step (4)
            owner[note.index] = note.thread
    return owner


drawn, axes = figure(9, 2.3, columns=3)
for ax, T in zip(axes, (1, 3, 8), strict=True):
    assert (writers(T) == np.arange(24).reshape(4, 6) % T).all()
    matrix(ax, writers(T), f"T = {T}: the thread that writes", limit=max(T - 1, 1))
show(drawn, "Three tables of 4 rows and 6 columns with the number of the thread that writes each element. With one "
            "thread all are 0. With 3 threads every row is 0 1 2 0 1 2. With 8 threads they go 0 to 7 and on into the "
            "next row, so that element (1, 2) belongs to thread 0 again.")

# %% [markdown]
# Nobody asked whether T divides the number of elements (24 above, 6 below), or whether there are more threads than
# elements. The loop is right for any `T`:

# %%
results = {T: cuda_kernels.forward(q, k, v, threads=T, **how) for T in (1, 2, 3, 8, 13, 64)}
for T, (o, _) in results.items():
    print(f"T = {T:2}: the same bits as with one thread: {(o == out).all()}")
    assert (o == out).all()

# %% [markdown]
# ## Exercise: the scores of a tile
#
# Write step (4) as a kernel of its own. One block gets one tile of `S`: the `br` rows from `row0` on, the `bc` columns
# from `col0` on. `S[row, col]` is `scale` times the product of `Q[row]` and `K[col]`. The tile may be the last one, so
# `br` and `bc` can be anything from 1. Element `e = r * bc + c` of the tile belongs to thread `e` modulo `T`.
#
# A **race** is two threads that touch the same element, one of them writing, with nothing that says which comes first.
# The **audit** of the simulator looks for them; more of it below.
#
# It is tried with 1 to 64 threads, under the audit: no race, no element twice, nothing read that is not of the tile.
# About 7 lines.

# %% tags=["stub"]
@cuda.jit
def scores_step(Q, K, S, row0, col0, br, bc, scale):
    """Q (Nq, d), K (Nk, d), S (Nq, Nk) in memory. Writes S[row0:row0 + br, col0:col0 + bc] and nothing else.

    S is NaN at the start.
    cuda.threadIdx.x is t, the number of this thread; cuda.blockDim.x is T, how many there are.
    """
    raise NotImplementedError("scores_step is yours to write")


# %%
nb09.scores_step(scores_step)

# %% [markdown]
# To run the case that goes wrong once more, yourself: a kernel is launched with a number of blocks and a number of
# threads in brackets, and `S` must be there.
#
# ```python
# verdict = nb09.scores_step(scores_step)
# case = dict(verdict.args)
# Q, K, T = (case.pop(name) for name in ("Q", "K", "threads"))
# S = np.full((len(Q), len(K)), np.nan)
# scores_step[1, T](Q, K, S, *case.values())                     # 1 block of T threads
# print(S)
# ```
#
# <details><summary>Hint 1: which element is it?</summary>
#
# `r, c = e // bc, e % bc` are its row and column in the tile. In `Q` its row is `row0 + r`.
# </details>
#
# <details><summary>Hint 2: a sum in a kernel</summary>
#
# A kernel has no `@`, and no arithmetic on slices. Start with `product = 0.0` and add `Q[…, x] * K[…, x]` for every `x`
# in `range(Q.shape[1])`.
# </details>
#
# <details><summary>Hint 3: "the audit finds a fault (race)"</summary>
#
# Two threads write the same element. Where does the loop start, and how far does it step?
# </details>
#
# The answer: [solutions/nb09.py](solutions/nb09.py).

# %% [markdown]
# ## Barriers
#
# `cuda.syncthreads()` is a **barrier**: a thread waits there until all threads of its block have come. Then it sees
# what they wrote. These are the barriers of `fa2`:

# %%
for n, barrier in enumerate(barriers()):
    print(n, barrier)
assert n + 1 == 5

# %% [markdown]
# Numbers 0 to 3 stand in the loop over tiles of keys, number 4 behind it. Predict: how often do the threads of a block
# meet, if there are two tiles of keys? And all blocks together, if there are two tiles of queries?
#
# An audit counts. It watches all that happens inside its `with` block.

# %%
with simulator.audit() as audit:
    cuda_kernels.forward(q, k, v, threads=8, **how)
print("barriers:", audit.counts.barriers, "  findings:", len(audit.findings))
assert audit.counts.barriers == 2 * (2 * 4 + 1) and audit.ok

# %% [markdown]
# What happens between the barriers, in the first block? The picture counts accesses to shared memory, phase by phase:
# phase 1 is what happens between the first barrier and the second.

# %%
with noted() as (_, notes):
    cuda_kernels.forward(q, k, v, threads=8, **how)
names = ["Qi", "Kj", "Vj", "Sij", "alpha", "m", "l", "acc"]
drawn, axes = figure(8.6, 3.3, columns=2)
for ax, action in zip(axes, ("writes", "reads"), strict=True):
    table = np.zeros((len(names), 6))
    for note in notes:
        if note.block == (0, 0, 0) and note.array in names and note.action == action and note.phase < 6:
            table[names.index(note.array), note.phase] += 1
    matrix(ax, table, f"{action} of shared memory", limit=12)
    ax.set_xlabel("phase")
    ax.set_yticks(range(len(names)), names)
    for text in ax.texts:
        text.set_visible(text.get_text() != "0")                         # an empty cell is easier to see
    if action == "writes":
        assert table[names.index("Sij"), 2] == 2 * 3 and table[names.index("Kj"), 1] == table[names.index("Kj"), 5] == 6
show(drawn, "Two tables, writes and reads of shared memory, of eight arrays in phases 0 to 5. Kj and Vj are written in "
            "phases 1 and 5. Sij is written in phase 2, read and written in phase 3, read in phase 4. alpha is written "
            "in phase 3 and read in phases 3 and 4. acc is written in phases 0 and 4.")

# %% [markdown]
# Read it like this: `Sij` is written in phase 2 and read in phase 3, by other threads. So there must be a barrier
# between them. `Vj` is read in phase 4 and overwritten in phase 5: a barrier again.
#
# ## Which barrier may go?
#
# Five barriers, and waiting costs time. Is one of them too many? Predict, for each of the five: would the audit find
# something without it? Would the numbers be wrong, here in the simulator?
#
# Each is now taken away, in a copy of the file. Two problems are tried with 8 threads: the small one, and one in which
# the first tile of queries sees no key at all (6 queries, 4 keys, causal).

# %%
def findings_without(barrier, *qkv, **options):
    """Lines of the races in a copy without this barrier, and whether its output is still right."""
    right = cuda_kernels.forward(*qkv, **how | options)
    with without(barrier), simulator.audit() as audit, np.errstate(invalid="ignore"):
        got = cuda_kernels.forward(*qkv, threads=8, **how | options | {"kernel": "copy"})
    return audit.races, bool((got.out == right.out).all())


needed = []
for n, barrier in enumerate(barriers()):
    usual, same = findings_without(barrier, q, k, v)
    unseen, _ = findings_without(barrier, k, q, q, causal=True)          # 6 keys as queries, 4 queries as keys, values
    needed.append(bool(usual or unseen))
    arrays = [sorted({race.array.split()[0] for race in races}) for races in (usual, unseen)]
    print(f"without {n}: races on {', '.join(arrays[0]) or 'nothing':10}   output still right: {same!s:5}   "
          f"no key seen: races on {', '.join(arrays[1]) or 'nothing'}")
    assert n != 1 or arrays == [["Kj"], ["Kj"]]
assert all(needed)

# %% [markdown]
# None may go. Without number 1 only `Kj` is in danger: `Qi` was loaded before number 0, and `Vj` is not read before
# number 3. Two things are worth a second look:
#
# - **The output can be right all the same.** The simulator's threads take turns in an order that does no harm. A GPU
#   promises no order. So a test that compares numbers proves little about barriers. The audit does not wait for a
#   collision: it knows what a barrier puts in order, and reports what none does.
# - **The last barrier is needed for one rare case only.** If a tile of queries visits no tile of keys, no other barrier
#   stands between step (2), which sets `l`, and step (10), which divides by it. An audit sees the run, not the program:
#   give it the rare cases too.
#
# ## With 20 minutes more
#
# What follows is for those who have the time: a debugger of your choice, or a detective's case. "What to take along" is
# at the end.
#
# ### In the debugger that you like best
#
# It stops in the same kernel, with one thread, as the session above.
#
# <details><summary>pdb, in a terminal</summary>
#
# 1. In the folder of the repository: `make debug-kernel`. It stops at the barrier before step (4).
# 2. `p Qi` prints an array, `n` goes to the next line, `c` to the next breakpoint, `q` leaves.
# </details>
#
# <details><summary>VS Code</summary>
#
# 1. Open `cuda_kernels/fa2.py` and click left of the line number of the barrier `# Qi, Kj, Vj are there`.
# 2. Open "Run and Debug", choose **Step through the FlashAttention-2 kernel (simulator)** and press F5.
# 3. "Variables" lists t, T, i, j, Qi, Sij, acc. F10 is the next line, F5 the next tile.
# </details>
#
# <details><summary>JupyterLab, in this notebook</summary>
#
# 1. Run the first cells, down to the one that prints the output of the small problem.
# 2. Click the bug at the right end of the notebook's toolbar ("Enable Debugger"). A panel opens on the right. If not:
#    click the bug at the right edge of the window.
# 3. At the bottom of the panel is "Kernel Sources". Type `fa2` into its box "Filter sources" and click
#    `cuda_kernels.fa2`. (The list has the names of modules; it needs some seconds to fill.) The file opens in a tab.
# 4. In that tab, click left of the line number of the barrier `# Qi, Kj, Vj are there`. A red dot appears, and the line
#    is listed under "Breakpoints".
# 5. Go back to the notebook and run the cell again that prints the output of the small problem. It stops, and the tab
#    with the file shows where.
# 6. "Variables" calls the arrays "Guarded". The second icon beside "Locals" is "Table View": it shows their numbers.
# 7. The buttons of "Callstack", or keys: F9 goes on to the next tile, F10 to the next line, F11 into a call. It stops
#    four times: two tiles of queries, two tiles of keys each. Then remove the red dot with a click on it.
# </details>
#
# ### Case 4: right, but for how long?
#
# A kernel for the softmax of each row, a piece of 4 numbers at a time (`PIECE` is 4). Its symptom:

# %%
print(case4.__doc__)
numbered(case4.row_softmax)

# %%
for N, T in ((3, 1), (3, 2), (8, 1), (8, 2), (22, 64)):
    X = np.random.default_rng(N).standard_normal((2, N))
    P = np.full_like(X, np.nan)
    case4.row_softmax[2, T](X, P)                                          # 2 blocks of T threads
    right = np.exp(X) / np.exp(X).sum(axis=1, keepdims=True)
    print(f"rows of {N:2}, T = {T:2}: right: {np.allclose(P, right, rtol=1e-12)}")
    assert np.allclose(P, right, rtol=1e-12)

# %% [markdown]
# Always right. Is there a race at all? Your tool is `simulator.audit()`. `print(audit)` shows its counts, and below
# them what it found. The next cell is a start.
#
# **First: where is the race?** Find the shortest row that has it, with how many threads, and between which two lines.
# Hand in four things: `N`, the number of threads, and the two lines, as texts (line numbers, comments and spaces do not
# matter). 1 line. Before you run anything, predict: which two threads could be in each other's way, and when?

# %%
X = np.random.default_rng(0).standard_normal((1, 3))                       # change me
with simulator.audit() as audit:
    case4.row_softmax[1, 2](X, np.empty_like(X))
print(audit)


# %% tags=["stub"]
def race_of_case4():
    """Returns N, threads, a line, the other line."""
    raise NotImplementedError("race_of_case4 is yours to write")


# %%
nb09.race_of_case4(race_of_case4)

# %% [markdown]
# <details><summary>Hint 1: which line is meant?</summary>
#
# A finding ends with two lines like `thread 1 of block (0, 0, 0) writes at …/case4.py:40`. The number is that of a line
# in `notebooks/detective/case4.py`; it stands before the lines above.
# </details>
#
# <details><summary>Hint 2: the shortest row</summary>
#
# One piece is not enough: who would overwrite it? And in the second piece, a thread other than 0 must have something to
# load.
# </details>
#
# **Second: repair it.** Copy the kernel into the cell and mend it. The audit must find nothing, with any number of
# threads; tried are 1, 2, 3, 4, 7, 8, 32, 33 and 64. The work must stay shared out. And no barrier too many: 2 for each
# piece of 4 numbers are enough. About 25 lines, all but one of them copied.

# %% tags=["stub"]
@cuda.jit
def repair_of_case4(X, P):
    """X, P: (rows, N) in float64; one block for each row."""
    raise NotImplementedError("repair_of_case4 is yours to write")


# %%
nb09.repair_of_case4(repair_of_case4)

# %% [markdown]
# <details><summary>Hint: what you need for the copy</summary>
#
# The kernel uses `math`, `float64` (from numba) and `PIECE = 4`. Import them in the cell: `import math`,
# `from numba import cuda, float64`.
# </details>
#
# <details><summary>Hint: three barriers seem to be needed</summary>
#
# Two in the loop, one behind it? The last one in the loop can do the work of the one behind it.
# </details>
#
# The answers: [solutions/nb09.py](solutions/nb09.py).

# %% [markdown]
# ## What to take along
#
# - A thread-stride loop shares a tile out among any number of threads. With one thread it is the loop you know, and any
#   debugger stops in it.
# - A barrier stands where a thread reads what another one wrote, or overwrites what another one may still read.
# - Right numbers say nothing about barriers. Ask the audit, and give it the rare cases too.
#
# More: [docs/debugging_kernels.md](../docs/debugging_kernels.md).
#
# Next: [10 Warps and multiprocessors](10_warps_and_multiprocessors.ipynb).
