"""FlashAttention-3, Table 3: errors in 16 and in 8 bits, on inputs with outliers, run again in NumPy."""

import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

import numpy as np

from fa_ref import fp8_errors
from fa_ref.tables.rows import DIFFERS, OK, Row, Table, row

PRINTED = {"baseline FP16": "3.2e-4", "FA2 FP16": "1.9e-4", "FA3 FP16": "1.9e-4", "baseline FP8": "2.4e-2",
           "FA3 FP8": "9.1e-3", "FA3 FP8 without block quantisation": "9.3e-3",
           "FA3 FP8 without incoherent processing": "2.4e-2"}
SEEDS, FULL, QUICK = 4, {"N": 8192, "d": 128}, {"N": 1024, "d": 64}
# (what, worse, better, at least so many times): what holds for every seed, at both sizes
ORDER = [("FA2 FP16 is closer than baseline FP16", "baseline FP16", "FA2 FP16", 1.15),
         ("FA3 FP8 is closer than baseline FP8", "baseline FP8", "FA3 FP8", 1.3),
         ("incoherent processing helps", "FA3 FP8 without incoherent processing", "FA3 FP8", 1.15)]


def errors_table(quick=False, progress=None, seeds=SEEDS):
    """Means over a few seeds beside the paper's numbers (at the full size), and orderings that hold for each seed."""
    size = QUICK if quick else FULL
    found = measured(seeds, size, progress)
    mean = {name: float(np.mean(errors)) for name, errors in found.items()}
    rows = [row(name, None if quick else printed, mean[name], ".2e", within=0.25,
                why=f"draws from {min(found[name]):.1e} to {max(found[name]):.1e}")
            for name, printed in PRINTED.items()]
    for what, worse, better, least in ORDER:
        ratios = [a / b for a, b in zip(found[worse], found[better], strict=True)]
        printed = float(PRINTED[worse]) / float(PRINTED[better])
        rows.append(Row(what, "" if quick else f"({printed:.1f} ×)", f"{np.mean(ratios):.1f} ×",
                        OK if min(ratios) >= least else DIFFERS, f"at least {least} × for each seed"))
    return Table("Errors with outliers", "FA3 (2407.08608), Table 3", rows,
                 f"Root mean squared errors, {seeds} draws, N = {size['N']}, d = {size['d']}. The paper states "
                 "neither; 8192 and 128 come near its numbers. What block quantisation adds, 9.1 to 9.3, is less "
                 "than what another draw changes, so it is not asserted.")


def measured(seeds, size, progress=None):
    """{method: [its error, one for each seed]}; progress: rich's, which gets a bar of its own.

    Seeds run side by side, each in a process: what takes time is elementwise work, which uses one core.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")                  # in each of them; NumPy here is loaded already
    task = progress and progress.add_task("errors in 16 and 8 bits", total=seeds)
    with ProcessPoolExecutor(min(seeds, os.cpu_count()), mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(fp8_errors.errors, seed, **size) for seed in range(seeds)]
        for _ in as_completed(futures):
            if progress:
                progress.advance(task)
        found = [future.result() for future in futures]
    return {name: [errors[name] for errors in found] for name in PRINTED}
