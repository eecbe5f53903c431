"""compute-sanitizer over a dozen small problems of every kernel: memory, races, barriers.

Each tool is also shown a kernel with a fault (sanitize_planted.py), which it must find.

    python sanitize.py [--save sanitize.json]       about 5 minutes with 16 cores

Ends with 0 if nothing was found anywhere. `python docs/generate.py sanitize FILE` writes the table into the docs.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("FA_REF_CUDA", "gpu")

from gpu_check import KERNELS, on_which

PLANTED = "a planted fault"
TOOLS = ("memcheck", "racecheck", "synccheck")
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards? displayed.*)")


def sanitized(job):
    """(tool, kernel, what it found as a number or None if it did not come to an end, its last lines)."""
    tool, kernel = job
    begun = time.monotonic()
    program, *arguments = ("sanitize_planted.py", tool) if kernel == PLANTED else ("gpu_check.py", "--small", kernel)
    run = subprocess.run(
        ["compute-sanitizer", "--tool", tool, "--report-api-errors", "no", sys.executable,
         str(Path(__file__).with_name(program)), *arguments], capture_output=True, text=True, check=False)
    said = SUMMARY.search(run.stdout)
    problems = re.search(r"(\d+) problems", run.stdout)
    found = int(said[1]) if said and problems and run.returncode == 0 else None
    told = f"{problems[1] if problems else 'no'} problems, " + (f"{found} found" if found is not None else "FAILED")
    print(f"{tool:9} {kernel:10} {told} ({time.monotonic() - begun:.0f} s)", flush=True)
    if not right(kernel, found):
        print(run.stdout[-4000:] + run.stderr[-2000:], flush=True)
    return tool, kernel, int(problems[1]) if problems else 0, found


def right(kernel, found):
    """It came to an end, and something was found where it was planted and nowhere else."""
    return found is not None and (found > 0) == (kernel == PLANTED)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", metavar="FILE", help="write the table as JSON")
    parser.add_argument("--kernels", default=",".join(KERNELS), help="comma-separated (all)")
    options = parser.parse_args()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        kernels = (*options.kernels.split(","), PLANTED)
        rows = list(pool.map(sanitized, [(tool, kernel) for tool in TOOLS for kernel in kernels]))
    if options.save:
        Path(options.save).write_text(json.dumps({"on": on_which(), "rows": rows}, indent=1), encoding="utf-8")
    ok = all(right(kernel, found) for _, kernel, _, found in rows)
    print("nothing found but what was planted" if ok else "see above")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
