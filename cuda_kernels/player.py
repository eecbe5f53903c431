"""Watch a kernel run, line by line, as `fa_ref/player.py` shows the loops: in the simulator, played by one thread.

    record_kernel("fa2", q, k, v, block_q=2, block_k=3).save("kernel.html")

With one thread a kernel is a sequential program: each block of the grid is one call of it, one after another. An audit
(see `simulator/audit.py`) sees which elements of Q, K, V, O and L it loads and stores.

    python -m cuda_kernels play [KERNEL] [-o FILE]      writes the page of the tiny problem of `fa_ref/debug.py`
"""

from types import CodeType

import numpy as np
from ml_dtypes import bfloat16

import cuda_kernels
from cuda_kernels.heads import KERNELS
from cuda_kernels.simulator.audit import Audit
from cuda_kernels.simulator.memory import Guarded
from cuda_kernels.simulator.races import ATOMIC, READ
from cuda_kernels.simulator.watched import index_of
from fa_ref import debug, inputs, player, torch_bridge
from fa_ref.ledger import Access, Record
from fa_ref.options import check_choice

ONE_THREAD = [name for name, core in KERNELS.items() if not hasattr(core, "WARPS")]


class Memory(Audit):
    """The audit that a recording needs: it notes every access to global memory, and reports nothing."""

    def __init__(self):
        super().__init__()
        self.log, self.records = [], {}

    def look(self, x):
        """(record, cells) of an array in the memory of the GPU, (None, plain value) of everything else."""
        if not isinstance(x, Guarded):
            return None, x
        cells = x.data.view(bfloat16) if x.data.dtype == np.uint16 else x.data      # words stand for bfloat16
        if x.origin.space != "global":
            return None, cells
        cells = cells[0, 0] if cells.ndim > 2 else cells            # of one head
        if x.origin not in self.records:
            self.records[x.origin] = Record(x.origin.name, cells.shape, cells.dtype)
        return self.records[x.origin], cells

    # --- what a launch and a block tell their watch: this is both ---

    def launch(self, kernel, lanes):
        return self

    def block(self, blockIdx):
        return self

    def access(self, action, array, address):
        """A thread touches one cell."""
        if array.origin.space == "global":
            record, _ = self.look(array)
            index = index_of(array.origin.data, address)
            where = tuple((n, n + 1) for n in (index[2:] if len(index) > 2 else index))
            for done in ("load", "store") if action is ATOMIC else ("load",) if action is READ else ("store",):
                self.log.append(Access(record, done, where))

    def arrived(self, meeting, lane):
        """One thread waits for nobody."""

    released = arrived


def record_kernel(kernel, q, k, v, *, max_steps=player.MAX_STEPS, **options):
    """Run the forward pass of a kernel on one head in the simulator; returns a `fa_ref.player.Recording`.

    q (1, 1, Nq, d), k (1, 1, Nk, d), v (1, 1, Nk, dv); options as in `cuda_kernels.forward`; threads is 1. The answer
    of the recording is (out, lse).

    Raises RuntimeError where kernels run on a GPU, NotImplementedError for a kernel that works by warps, and
    ValueError for another number of threads, several heads, or a run of more than max_steps steps.
    """
    core = KERNELS[check_choice("kernel", kernel, KERNELS)]
    if not cuda_kernels.SIMULATED:
        raise RuntimeError("kernels run on the GPU here, where nobody sees their lines: set FA_REF_CUDA=sim")
    if kernel not in ONE_THREAD:
        raise NotImplementedError(f"{kernel} works by warps of 32 threads; a recording follows one thread, "
                                  f"as {', '.join(ONE_THREAD)} can run with")
    if options.setdefault("threads", 1) != 1:
        raise ValueError(f"a recording follows one thread, got threads = {options['threads']}")
    sizes = inputs.check_qkv(*(torch_bridge.to_numpy(name, x) for name, x in (("q", q), ("k", k), ("v", v))))
    if sizes.B * sizes.Hq != 1:
        raise ValueError(f"a recording shows one head, got {sizes.B} batch entries of {sizes.Hq} heads: give "
                         "q[:1, :1], k[:1, :1], v[:1, :1]")
    if not (sizes.Nq and sizes.Nk):
        raise ValueError(f"{sizes.Nq} queries and {sizes.Nk} keys: there is nothing to record")
    factory = core.make_forward.__wrapped__                         # behind its cache
    code, = (x for x in factory.__code__.co_consts if isinstance(x, CodeType))      # the one function in it: the kernel

    def run():
        return cuda_kernels.forward(q, k, v, kernel=kernel, **options)

    return player.Recording(run, [code], Memory(), max_steps)


def tiny(kernel):
    """The Recording of a kernel on the problem of `fa_ref.debug`."""
    Q, K, V, rule = debug.tiny()
    return record_kernel(kernel, *(x[None, None] for x in (Q, K, V)), scale=rule.scale,
                         block_q=debug.BR, block_k=debug.BC)


def main(argv=None):
    """`python -m cuda_kernels play [standard|fa1|fa2] [-o FILE]`: write the page and say where."""
    return player.main(argv, ONE_THREAD, tiny, "python -m cuda_kernels play")
