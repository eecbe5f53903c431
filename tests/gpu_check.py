"""All about the kernels that needs a GPU: the kit, streams, large offsets, limits, time, memory. One table last.

    python gpu_check.py                         all of it (about 10 minutes with 16 cores; compiling is most of it)
    python gpu_check.py --only costs,streams    some of it
    python gpu_check.py --save gpu.json         keep the tables for `python docs/generate.py gpu gpu.json`
    python gpu_check.py --small fa2             a dozen small problems of one kernel and no torch, for sanitize.py

The checks are in gpu_kit, gpu_torch, gpu_tensor_cores, gpu_operator, gpu_instructions and gpu_costs. Ends with 0 if
everything held.
"""

import argparse
import json
import os
import sys
import time
import traceback
from datetime import date
from functools import partial

os.environ.setdefault("FA_REF_CUDA", "gpu")

import numpy as np

import gpu_costs
import gpu_instructions
import gpu_kit
import gpu_tensor_cores
import gpu_torch
from gpu_arrays import KERNELS


class Report:
    """Rows (check, held?, words), told as they come and as a table at the end."""

    def __init__(self):
        self.rows, self.costs = [], []

    def add(self, name, ok, words):
        self.rows.append((name, ok, words))
        print(f"{'ok    ' if ok else 'FAILED'}  {name}: {words}", flush=True)

    def table(self):
        width = max(len(name) for name, *_ in self.rows)
        lines = ((name, ok, words.splitlines() or [""]) for name, ok, words in self.rows)
        return "\n".join(f"{name:{width}}  {'ok    ' if ok else 'FAILED'}  {words[0] if ok else words[-1]}"
                         for name, ok, words in lines)          # the last line of a traceback has the error


def operator(report):
    """What gpu_operator has; it imports torch at once, which --small does without."""
    import gpu_operator
    gpu_operator.operator(report)


CHECKS = {"threads": [gpu_kit.any_threads], "instructions": [gpu_instructions.instructions],
          "official": [gpu_tensor_cores.official], "streams": [gpu_torch.streams], "graphs": [gpu_tensor_cores.graphs],
          "kinds": [gpu_torch.kinds, gpu_torch.refused], "repeats": [gpu_torch.repeats, gpu_tensor_cores.repeats],
          "poisoned": [gpu_tensor_cores.poisoned], "offsets": [gpu_torch.offsets], "costs": [gpu_costs.costs],
          "memory": [gpu_costs.memory], "operator": [operator]}


def on_which():
    """The device, the day and the versions in one line."""
    import numba_cuda
    import torch
    return (f"{torch.cuda.get_device_name()}, {date.today()}, Python {sys.version.split()[0]}, NumPy {np.__version__}, "
            f"numba-cuda {numba_cuda.__version__}, torch {torch.__version__.split('+')[0]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", default=",".join(KERNELS), help="for the kit and larger problems (all)")
    parser.add_argument("--only", help=f"comma-separated, out of kit, larger, {', '.join(CHECKS)}")
    parser.add_argument("--small", choices=KERNELS, help="only the small problems of this kernel")
    parser.add_argument("--save", metavar="FILE", help="write the tables as JSON")
    parser.add_argument("--examples", type=int, default=15, help="problems per property of the kit (15)")
    parser.add_argument("--minutes", type=float, default=5, help="for the kit (5)")
    options = parser.parse_args()
    parts = {"kit": [partial(gpu_kit.kit, kernels=options.kernels.split(","), examples=options.examples,
                             minutes=options.minutes)],
             "larger": [partial(gpu_kit.larger, kernels=options.kernels.split(","))], **CHECKS}
    chosen = options.only.split(",") if options.only else list(parts)
    if unknown := [name for name in chosen if name not in parts]:
        parser.error(f"--only takes {', '.join(parts)}; got {', '.join(unknown)}")
    if unknown := [name for name in options.kernels.split(",") if name not in KERNELS]:
        parser.error(f"--kernels takes {', '.join(KERNELS)}; got {', '.join(unknown)}")
    report = Report()
    if options.small:
        gpu_kit.small(report, options.small)
        return 0
    machine = on_which()
    print(machine, flush=True)
    for name in chosen:
        begun = time.monotonic()
        for check in parts[name]:
            try:
                check(report)
            except Exception:
                report.add(name, False, traceback.format_exc())
        print(f"        {name}: {time.monotonic() - begun:.0f} s", flush=True)
    print(f"\n{report.table()}")
    if options.save:
        with open(options.save, "w", encoding="utf-8") as file:
            json.dump({"on": machine, "rows": report.rows, "costs": report.costs}, file, indent=1)
    return 0 if all(ok for _, ok, _ in report.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
