"""Hypothesis's profiles: HYPOTHESIS_PROFILE is dev, ci (the default where CI is set) or thorough."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

os.environ.setdefault("FA_REF_CUDA", "sim")             # kernels run in the simulator, whatever the machine has
import cuda_kernels.switch  # noqa: F401, I001          before anything imports Numba
from hypothesis import settings

settings.register_profile("dev", deadline=None, max_examples=30)
settings.register_profile("ci", deadline=None, derandomize=True, database=None, print_blob=True)
settings.register_profile("thorough", deadline=None, max_examples=10_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of the site, built once. It builds without a warning."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, Path(__file__).parent.parent / "docs" / "site" / "build.py", folder]
    run = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    assert run.returncode == 0, run.stdout + run.stderr
    return folder / "site"
