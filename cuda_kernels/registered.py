"""The kernels as implementations for the kit of `fa_ref.testing`; importing this module enters them by name.

    from cuda_kernels import registered
    print(check(*registered.implementation("fa2", threads=8)))
"""

from functools import partial

from cuda_kernels.heads import KERNELS, WITH_BACKWARD, backward, forward
from cuda_kernels.switch import SIMULATED
from fa_ref.testing import adapters, registry

NOT_OFFERED = ("float_mask", "bias", "alibi")
DESCRIPTIONS = {
    "standard": "S and P in the GPU's memory; four kernels backward",
    "fa1": "one block per head; O, l and m travel to memory in every step",
    "fa2": "one block per tile of queries; O stays on chip until it is finished",
    "fa1_warps": "warps share the keys of a tile: partial results meet in shared memory",
    "fa2_warps": "warps share the queries of a tile: shuffles inside a warp only",
}


def implementation(kernel, threads=None, deterministic=True):
    """(ask, supports) of one kernel on NumPy arrays, with this many threads in a block."""
    gradients = partial(backward, kernel=kernel, threads=threads, deterministic=deterministic)
    ask, supports = adapters.fa_ref(partial(forward, kernel=kernel, threads=threads),
                                    backward=gradients if kernel in WITH_BACKWARD else None)
    bitwise = deterministic or SIMULATED or kernel != "fa2"
    return ask, supports.without(*NOT_OFFERED).but(deterministic=bitwise)


for name in KERNELS:
    ask, supports = implementation(name, deterministic=False)
    registry.register(f"cuda {name}", ask, supports, DESCRIPTIONS[name], f"cuda_kernels/{name}.py")
