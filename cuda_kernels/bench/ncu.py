"""What the hardware counts while kernels run: Nsight Compute, a program that comes with the CUDA toolkit.

It runs a kernel again and again until everything that was asked for is counted, and flushes caches in between. Here it
leaves the clocks alone. Some containers and virtual machines do not let it read the counters.
"""

import csv
import io
import subprocess


def counted(command, metrics, kernels):
    """[{"kernel": its name, metric: number}] of every launch that the command makes of kernels with such names.

    command: a list of words. metrics: names of Nsight Compute. kernels: a regular expression. RuntimeError, with what
    was printed, if nothing was counted, or not everything; FileNotFoundError if there is no ncu.
    """
    run = subprocess.run(
        ["ncu", "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base", "--kernel-name",
         f"regex:{kernels}", "--metrics", ",".join(metrics), *command], capture_output=True, text=True, check=False)
    rows = csv.DictReader(io.StringIO(run.stdout[run.stdout.find('"ID"'):]))
    launches = [row for row in rows if (row.get("ID") or "").isdigit()]         # a row of units is none, nor a warning
    if not launches:
        raise RuntimeError(f"Nsight Compute has counted nothing:\n{run.stdout[-3000:]}{run.stderr[-3000:]}")
    try:
        return [{"kernel": row["Kernel Name"]} | {metric: float(row[metric].replace(",", "")) for metric in metrics}
                for row in launches]
    except ValueError as problem:                                   # "n/a"
        raise RuntimeError(f"Nsight Compute cannot count all of {', '.join(metrics)} here: {problem}") from None
