"""What the kernels really move through the memory of a GPU, by Nsight Compute, beside what the ledger counts.

    python gpu_dram.py [--save dram.json]       needs ncu, which comes with the CUDA toolkit; about a minute

Two counts of the hardware. "Asked for" are the bytes that the instructions of a kernel load from and store to global
memory: this is what the ledger counts. "HBM" are the bytes that pass between the L2 cache and HBM: less, where several
blocks read the same tiles at the same time and the L2 cache serves all but the first.
"""

import argparse
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("FA_REF_CUDA", "gpu")

import numpy as np

import cuda_kernels
from cuda_kernels.bench import ncu
from fa_ref import fa1, fa2, standard
from fa_ref.ledger import Ledger
from fa_ref.scores import Rule

CORES = {"standard": standard, "fa1": fa1, "fa2": fa2}
D, TILE = 64, 32
# (kernel, heads, N): all that must pass at once is more than the 50 MB of an H200's L2 cache
CASES = [("standard", 1, 16384), ("fa1", 132, 2048), ("fa2", 132, 2048), ("fa2", 1, 131072)]
METRICS = {"asked read": "smsp__sass_data_bytes_mem_global_op_ld.sum",
           "asked write": "smsp__sass_data_bytes_mem_global_op_st.sum",
           "HBM read": "dram__bytes_read.sum", "HBM write": "dram__bytes_write.sum"}


def launch_all():
    """One forward pass for each case: what ncu watches."""
    import torch

    for kernel, heads, N in CASES:
        x = [torch.randn(1, heads, N, D, device="cuda") for _ in range(3)]
        cuda_kernels.forward(*x, kernel=kernel, block_q=TILE, block_k=TILE)
        torch.cuda.synchronize()
        del x


def measured():
    """[{metric: bytes}] of the cases."""
    rows = ncu.counted([sys.executable, __file__, "--launch"], METRICS.values(), "forward")
    if len(rows) != len(CASES):
        sys.exit(f"ncu saw {len(rows)} launches, not {len(CASES)}: {rows}")
    return rows


def predicted(kernel, N):
    """(bytes read, written) of one head, float32, by the ledger; a long N is extrapolated from three shorter ones."""
    def count(n):
        X = np.zeros((n, D), np.float32)
        with Ledger() as led:
            CORES[kernel].forward_head(*(led.hbm(X) for _ in range(3)), Rule(n, n, scale=1.0), TILE, TILE)
        return np.array([led.total("read_bytes"), led.total("write_bytes")], float)

    if N <= 2048:
        return count(N)
    n = np.array([512.0, 1024.0, 2048.0])                           # the counts are polynomials of degree 2 in N
    return np.array([np.polyval(np.polyfit(n, y, 2), N) for y in np.transpose([count(int(x)) for x in n])]).round()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launch", action="store_true", help="only launch the kernels (what ncu is given)")
    parser.add_argument("--save", metavar="FILE", help="write the table as JSON")
    options = parser.parse_args()
    if options.launch:
        return launch_all()
    from gpu_check import on_which

    rows = []
    for (kernel, heads, N), found in zip(CASES, measured(), strict=True):
        read, write = predicted(kernel, N) * heads
        least = 4 * heads * N * D * 4                               # Q, K, V, O once
        found = {name: found[metric] for name, metric in METRICS.items()}
        rows.append((kernel, heads, N, read, write, *found.values(), least))
        print(f"{kernel:9}{heads:4} × {N:6}   ledger {read / 1e9:8.3f} + {write / 1e9:7.3f}   asked for "
              f"{found['asked read'] / 1e9:8.3f} + {found['asked write'] / 1e9:7.3f}   HBM "
              f"{found['HBM read'] / 1e9:8.3f} + {found['HBM write'] / 1e9:7.3f} GB (read + written)", flush=True)
    if options.save:
        Path(options.save).write_text(json.dumps({"on": on_which(), "rows": rows}, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
