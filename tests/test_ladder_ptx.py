"""What the compiler makes of the ladder, read from PTX without a GPU, as `test_ptx_types.py` does it.

A thread's own arrays are registers in every rung, but where tiles are meant to be too large. (What a rung's registers
are in the end, only the card's own assembler knows: `python -m cuda_kernels ladder` shows it.)
"""

import json

import pytest

from test_ptx_types import compiler, facts_from, facts_of

pytestmark = pytest.mark.slow
NAMES = [f"r{n}" for n in range(9)]
D = 128


@pytest.fixture(scope="module")
def compiled():
    """{rung, or "spills": facts}"""
    return facts_from(__file__)


def test_no_local_memory_but_where_it_is_meant(compiled):
    assert [name for name, facts in compiled.items() if facts["local"]] == ["spills"]


def test_no_float64(compiled):
    assert all(facts["f64"] == 0 for facts in compiled.values())


def test_barriers(compiled):
    """As many as are written: the compiler neither drops nor copies them."""
    barriers = [compiled[name]["barriers"] for name in NAMES]
    assert barriers == [3, 3, 3, 2, 2, 2, 1, 1, 1]


def test_copies_and_products(compiled):
    """16 bytes at a time from r4 on; of products of warps with rows of their own all that a tile takes."""
    assert [compiled[name]["copies"] > 0 for name in NAMES] == [False] * 4 + [True] * 5
    for name in NAMES[3:8]:
        assert compiled[name]["products"] == 2 * (64 // 8) * (D // 16), name
    assert compiled["r8"]["products"] == 2 * compiled["r7"]["products"]


def main():
    """Compile every rung for compute capability 9.0, bfloat16; print the facts as JSON."""
    cuda, types = compiler()

    import numpy as np
    from ml_dtypes import bfloat16

    from cuda_kernels.ladder import run
    from cuda_kernels.launch import WARP

    S, W3, W4 = (types.Array(kind, n, "A") for kind, n in ((types.uint16, 4), (types.float32, 3), (types.float32, 4)))
    found = {}
    for name, step, tiles in [(name, run.rung(name), run.rung(name).TILES) for name in NAMES] + [
            ("spills", run.rung("r8"), run.rung("r8").SPILLS)]:
        kernel = step.make_forward(*tiles, D, np.dtype(bfloat16))
        far = (W4, W3, W3) if step.KEYS_OUTSIDE else ()
        ptx, _ = cuda.compile_ptx(kernel.py_func, (S, S, S, S, W3, *far, types.float32, types.boolean), cc=(9, 0),
                                  launch_bounds=tiles[1] * WARP)
        found[name] = facts_of(ptx, None)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
