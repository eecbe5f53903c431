"""Hypothesis's profiles: HYPOTHESIS_PROFILE is dev, ci (the default where CI is set) or thorough."""

import os

os.environ.setdefault("FA_REF_CUDA", "sim")             # kernels run in the simulator, whatever the machine has
import cuda_kernels.switch  # noqa: F401, I001          before anything imports Numba
from hypothesis import settings

settings.register_profile("dev", deadline=None, max_examples=30)
settings.register_profile("ci", deadline=None, derandomize=True, database=None, print_blob=True)
settings.register_profile("thorough", deadline=None, max_examples=10_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))
