"""Who is measured: our kernels, and torch's attention with each of its backends."""

import warnings
from functools import partial

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import cuda_kernels

BACKENDS = {"math": SDPBackend.MATH, "efficient": SDPBackend.EFFICIENT_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
            "cudnn": SDPBackend.CUDNN_ATTENTION}


def calls(case, q, k, v, kernels):
    """{name: a call without arguments that returns O} of every peer, ours first."""
    ours = {name: partial(by_kernel, name, q, k, v, case.causal) for name in kernels}
    return ours | {name: partial(by_torch, backend, q, k, v, case.causal, case.grouped)
                   for name, backend in BACKENDS.items()}


def by_kernel(kernel, q, k, v, causal):
    """One of ours."""
    return cuda_kernels.forward(q, k, v, kernel=kernel, causal=causal).out


def by_torch(backend, q, k, v, causal, grouped):
    """torch's, by this backend or not at all."""
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)


def operator(grouped):
    """The attention that torch's graph knows of ours."""
    from cuda_kernels.torch_op import scaled_dot_product_attention as ours

    return partial(ours, enable_gqa=grouped)


def tried(call):
    """(what the call returned, None), or (None, why it could not be made): refused, or out of memory."""
    with warnings.catch_warnings(record=True) as told:              # torch gives its reasons as warnings
        warnings.simplefilter("always")
        try:
            return call(), None
        except (RuntimeError, ValueError) as refusal:
            words = str(refusal)
    return None, reason(words, [str(warning.message) for warning in told])


def reason(error, told):
    """The first thing that torch told beside what is meant for others; else the first line of the error."""
    told = [text.partition("(Triggered")[0].strip() for text in told]
    told = [text for text in told if not text.endswith("because:") and "disabled" not in text]
    return " ".join((told or error.strip().splitlines() or ["no reason given"])[0].split())
