"""Write the generated parts of README.md and docs/verification.md, each between its marks.

    python docs/generate.py coverage            README: what each implementation supports (a test compares it)
    python docs/generate.py kit [examples]      verification: every property on every implementation (10,000: 15 min.)
    python docs/generate.py bench               verification: the ratios of `make bench` on this machine

`make mutants` writes its own part when called with --write.
"""

import platform
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from pathlib import Path

import marks
import numpy as np

import cuda_kernels.registered  # noqa: F401  enters the kernels
from fa_ref.testing import running
from fa_ref.testing.properties import PROPERTIES
from fa_ref.testing.registry import IMPLEMENTATIONS, coverage_table

ROOT = Path(__file__).parent.parent
NUMPY = ("standard", "fa1", "fa2")
VERIFICATION = ROOT / "docs" / "verification.md"


def coverage():
    """The table of the README."""
    marks.fill(ROOT / "README.md", "coverage", coverage_table())


def kit(examples="10000"):
    """Every property on every implementation: on `examples` problems against the oracle, on a tenth of them else."""
    against_the_oracle = ("equals_the_oracle", "gradients_equal_the_oracles")
    jobs = [(prop, name, int(examples) // (1 if prop in against_the_oracle else 10))
            for prop in PROPERTIES for name in NUMPY]
    rows = {}
    with ProcessPoolExecutor() as pool:
        for (prop, name, _), row in zip(jobs, pool.map(tried, jobs), strict=True):
            rows[prop, name] = row
            print(f"{name:10} {prop:40} {row.status} {row.examples}", flush=True)
    lines = ["| property | " + " | ".join(NUMPY) + " |", "|---|" + "---|" * len(NUMPY)]
    for prop in PROPERTIES:
        cells = [told(rows[prop, name]) for name in NUMPY]
        lines.append(f"| {prop.replace('_', ' ')} | " + " | ".join(cells) + " |")
    total = sum(row.examples for row in rows.values())
    failures = [row for row in rows.values() if row.status == running.FAILED]
    lines.append(f"\n{total:,} problems, {len(failures)} failures ({date.today()}, NumPy {np.__version__}).")
    lines += [f"\n```\n{row.detail}\n```" for row in failures]
    marks.fill(VERIFICATION, "kit", "\n".join(lines))


def tried(job):
    """One property on one implementation (a function of its own, so that a pool can call it)."""
    prop, name, examples = job
    implementation = IMPLEMENTATIONS[name]
    return running.try_property(prop, implementation.fn, implementation.supports, examples=examples, seed=1)


def told(row):
    """A cell of the table."""
    return f"{row.examples:,} ok" if row.status == running.OK else row.status


def bench():
    """What `python -m fa_ref bench` prints."""
    run = subprocess.run([sys.executable, "-m", "fa_ref", "bench"], capture_output=True, text=True, check=True)
    told = "\n".join(line.rstrip() for line in run.stdout.splitlines()).strip("\n")
    marks.fill(VERIFICATION, "bench", f"{date.today()}, {platform.machine()}, Python {platform.python_version()}, "
                                      f"NumPy {np.__version__}:\n\n```text\n{told}\n```")


if __name__ == "__main__":
    commands = {"coverage": coverage, "kit": kit, "bench": bench}
    if len(sys.argv) < 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]](*sys.argv[2:])
