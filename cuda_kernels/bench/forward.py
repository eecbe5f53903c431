"""The forward pass, as `measure` takes it. `backward` has the same names."""

from functools import partial

import torch

from cuda_kernels.bench import peers, truth
from cuda_kernels.bench.targets import IN_GRAPH, OURS

NAME = "forward"
AT_ONCE = 200                                                       # calls that take the host 50 µs: see `clock`
yardstick = truth.yardstick


def tensors(case, device, number=3, seed=0):
    """q, k, v of a problem, as the fourth one dout: contiguous, standard normal, bfloat16."""
    generator = torch.Generator(device.name).manual_seed(seed)
    return [torch.randn(case.B, heads, case.N, case.d, dtype=torch.bfloat16, device=device.name, generator=generator)
            for heads in (case.H, case.Hkv, case.Hkv, case.H)[:number]]


def ready(case, q, k, v, kernels):
    """{peer: a function that makes its call ready}; the call returns O."""
    return {name: (lambda call=call: call) for name, call in peers.calls(case, q, k, v, kernels).items()}


def by_choice(q, k, v):
    """A call of torch's attention, by the backend that it chooses."""
    return lambda: peers.scaled_dot_product_attention(q, k, v)


def in_graph(q, k, v):
    """{peer: a call that is recorded for gradients, of torch's function and of our operator}: as in training."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    return {"torch" + IN_GRAPH: by_choice(*leaves),
            OURS + IN_GRAPH: partial(peers.operator(q.shape[1] != k.shape[1]), *leaves)}


def errors(out, known):
    """(the largest error of an answer, what is allowed)."""
    return truth.error_of(out, known), known.allowed
