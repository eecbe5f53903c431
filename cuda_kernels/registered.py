"""The kernels as implementations for the kit of `fa_ref.testing`; importing this module enters them by name.

    from cuda_kernels import registered
    print(check(*registered.implementation("fa2", threads=8)))
"""

from functools import partial

from cuda_kernels.heads import KERNELS, PLAIN, WITH_BACKWARD, backward, forward
from cuda_kernels.switch import SIMULATED
from fa_ref.testing import adapters, registry

NOT_OFFERED = ("float_mask", "bias", "alibi")
NOT_ON_TENSOR_CORES = ("bool_mask", "softcap", "sink", "dv_differs", "reverse")
TENSOR_CORE_DIMS = (8, 16, 32, 64, 96, 128, 192, 256)               # to be drawn; any others up to 256 are padded
DESCRIPTIONS = {
    "standard": "S and P in the GPU's memory; four kernels backward",
    "fa1": "one block per head; O, l and m travel to memory in every step",
    "fa2": "one block per tile of queries; O stays on chip until it is finished",
    "fa1_warps": "warps share the keys of a tile: partial results meet in shared memory",
    "fa2_warps": "warps share the queries of a tile: shuffles inside a warp only",
    "fa1_mma": "tensor cores; split-K, and O travels: for comparison with fa2_mma",
    "fa2_mma": "tensor cores; P stays in registers, tiles are copied one step ahead",
}


def implementation(kernel, threads=None, deterministic=True):
    """(ask, supports) of one kernel on NumPy arrays, with this many threads in a block."""
    gradients = partial(backward, kernel=kernel, threads=threads, deterministic=deterministic)
    ask, supports = adapters.fa_ref(partial(forward, kernel=kernel, threads=threads),
                                    backward=gradients if kernel in WITH_BACKWARD else None)
    bitwise = deterministic or SIMULATED or kernel not in ("fa2", "fa2_mma")
    supports = supports.without(*NOT_OFFERED).but(deterministic=bitwise)
    if kernel not in PLAIN:
        tiles = (threads // 2,) if threads in (64, 128, 256) else ()            # 16 queries for each warp
        supports = supports.without(*NOT_ON_TENSOR_CORES).but(
            dtypes=("float16", "bfloat16"), head_dims=TENSOR_CORE_DIMS, tiles=tiles)
    return ask, supports


for name in KERNELS:
    ask, supports = implementation(name, deterministic=False)
    registry.register(f"cuda {name}", ask, supports, DESCRIPTIONS[name], f"cuda_kernels/{name}.py")
