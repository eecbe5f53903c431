"""The backward pass, as `measure` takes it: the same names as in `forward`.

A call is the backward pass alone. What it needs of a forward pass is computed before, once, by the same peer: out and
lse, or for torch a graph, which `torch.autograd.grad` leaves as it is (retain_graph) and may walk through again. It
keeps the host longer than a forward pass, since another thread walks through the graph: fewer calls are asked for at
once.

Memory is that of both passes, the graph included: standard attention keeps P from one to the other, and that is what it
costs. In memory the heads of a token lie side by side, as the products before attention leave them. torch's flash and
efficient backends would otherwise copy out and dout into that order first, in every call.
"""

from functools import partial

import torch

import cuda_kernels
from cuda_kernels.bench import forward, gradients, peers
from cuda_kernels.bench.targets import DETERMINISTIC, IN_GRAPH, OURS

NAME = "backward"
AT_ONCE = 40                                                        # calls that take the host 250 µs: see `clock`
yardstick, errors = gradients.yardsticks, gradients.worst


def tensors(case, device):
    """q, k, v, dout of a problem, token by token in memory, standard normal, bfloat16."""
    return [x.transpose(1, 2).contiguous().transpose(1, 2) for x in forward.tensors(case, device, 4)]


def ready(case, q, k, v, dout, kernels):
    """{peer: a function that does a forward pass and makes the call ready}; the call returns dQ, dK, dV."""
    ours = {name + suffix: partial(by_kernel, name, q, k, v, dout, case.causal, deterministic)
            for name in kernels for suffix, deterministic in (("", False), (DETERMINISTIC, True))}
    return ours | {name: partial(by_torch, partial(peers.by_torch, backend, causal=case.causal, grouped=case.grouped),
                                 q, k, v, dout) for name, backend in peers.BACKENDS.items()}


def by_kernel(kernel, q, k, v, dout, causal, deterministic):
    """A call of one of ours."""
    out, lse = cuda_kernels.forward(q, k, v, kernel=kernel, causal=causal)
    return lambda: cuda_kernels.backward(dout, q, k, v, out, lse, kernel=kernel, causal=causal,
                                         deterministic=deterministic)[:3]


def by_torch(attention, q, k, v, dout):
    """A call of the backward pass of some attention(q, k, v) of torch's."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = attention(*leaves)
    return lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)


def by_choice(q, k, v, dout):
    """The same, by the backend that torch chooses."""
    return by_torch(peers.scaled_dot_product_attention, q, k, v, dout)


def in_graph(q, k, v, dout):
    """{peer: our backward pass as torch's graph calls it}: what the host does in training."""
    return {OURS + IN_GRAPH: by_torch(peers.operator(q.shape[1] != k.shape[1]), q, k, v, dout)}
