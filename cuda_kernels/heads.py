"""From a batch to launches: the checks, the grids of batch and heads, the sink. The mirror of `fa_ref/heads.py`."""

from functools import partial

import numpy as np

from cuda_kernels import arrays, fa1, fa1_mma, fa1_warps, fa2, fa2_mma, fa2_warps, finish, places, prepared, standard
from cuda_kernels.launch import Call, check_grid, check_threads, limits
from cuda_kernels.switch import check_still
from fa_ref import inputs
from fa_ref.base_two import refuse_base_two
from fa_ref.heads import Forward, Gradients, head_rule
from fa_ref.options import check_choice, check_flag, check_options
from fa_ref.torch_bridge import to_numpy

KERNELS = {"standard": standard, "fa1": fa1, "fa2": fa2, "fa1_warps": fa1_warps, "fa2_warps": fa2_warps,
           "fa1_mma": fa1_mma, "fa2_mma": fa2_mma}
PLAIN = tuple(name for name, core in KERNELS.items() if not hasattr(core, "plan"))     # any dtype, d, tile and option
WITH_BACKWARD = tuple(name for name, core in KERNELS.items() if hasattr(core, "backward"))


def forward(q, k, v, *, kernel="fa2", threads=None, scale=None, causal=False, window=(-1, -1), mask=None, bias=None,
            alibi_slopes=None, softcap=None, sink=None, block_q=None, block_k=None, reverse=False):
    """Attention of a batch on the GPU, or in the simulator. Returns the named tuple (out, lse).

    q (B, Hq, Nq, d), k (B, Hkv, Nk, d), v (B, Hkv, Nk, dv) of one dtype out of float64, float32, float16, bfloat16, all
    of one kind: NumPy arrays, torch tensors on the CPU, torch tensors on one CUDA device (no copy; torch's current
    stream; detached: no graph is recorded), or anything with __cuda_array_interface__ (no copy; the default stream).
    The results come back in kind, on the same device; for arrays that are neither NumPy's nor torch's as Numba's device
    arrays. mask and sink may be host arrays in any case. Any strides will do: kernels take strides, only host arrays
    that go to a device are copied. But on tensor cores the last axis of device arrays must be contiguous; they are read
    without a copy, 16 bytes at a time where base and strides are multiples of that, else number by number. What these
    kernels return for tensors on a device lies token by token, (B, N, H, d) in memory, if q does.

    kernel            "standard", "fa1", "fa2", by warps "fa1_warps", "fa2_warps", or on tensor cores "fa1_mma",
                      "fa2_mma" (no backward pass: by warps, "fa1_mma"); the answer is the same up to rounding
    threads           of a block, 1 to 1024, by warps 32, 64, … 256; None is 128, on tensor cores what suits d and the
                      pass, and in the simulator the least
    block_q, block_k  tile sizes Br, Bc ≥ 1; None is the largest power of two up to 32 (16 in the simulator) that fits;
                      "fa2_mma": 16 or 32 queries for each warp, and a multiple of 16 keys; "fa1_mma": a multiple of 16
                      queries up to `threads`, and a multiple of 16 keys for each warp
    mask              bool, True = visible, broadcasts to (B, Hq, Nq, Nk)
    all others        as `fa_ref.forward`; bias, alibi_slopes and float masks are offered there only

    Raises, before anything is launched, ValueError or TypeError for input that does not fit the call or the device (the
    text has the numbers) and NotImplementedError for options that kernels do not offer. Values in device memory are not
    looked at.
    """
    core = KERNELS[check_choice("kernel", kernel, KERNELS)]
    key = prepared.key_of(core, (q, k, v), threads, scale, causal, window, mask, bias, alibi_slopes, softcap, sink,
                          block_q, block_k, reverse)
    ready = prepared.known.get(key)
    if ready:
        return Forward(*ready(q, k, v))
    refuse(bias=bias, alibi_slopes=alibi_slopes)
    place = places.place_of(q=q, k=k, v=v)
    if kernel not in PLAIN:
        arrays.check_rows(kernel, q=q, k=k, v=v)
    with place.here():
        call, sink = make_call(place, kernel, False, q, k, v, mask, sink, threads, scale=scale, causal=causal,
                               window=window, softcap=softcap, block_q=block_q, block_k=block_k, reverse=reverse)
        B, Hq, _, Nq, Nk, _, dv = call.sizes
        if 0 in (B, Nq, Nk):                    # nothing to see: a kernel would find no key, or no row
            O = place.full((B, Hq, Nq, dv), 0, call.dtype if sink is None else call.wide)
            statistics = [place.full((B, Hq, Nq), -np.inf, call.wide)]
        else:
            Q, K, V = (place.load(x) for x in (q, k, v))
            O, *statistics = core.forward(call, Q, K, V)            # l and m of "fa1" and "fa1_warps", else L
            if key:
                prepared.remember(key, call, (q, k, v), (Q, K, V), (O, *statistics))
        *l, L = statistics                                          # L is an m whose l is 1
        if l or sink is not None:
            O, L = finish.merge_sink(call, O, l[0] if l else call.constant(1, B, Hq, Nq), L, sink)
        return Forward(place.result(O, call.dtype), place.result(L, call.wide))


def backward(dout, q, k, v, out, lse, *, kernel="fa2", threads=None, deterministic=False, dlse=None, scale=None,
             causal=False, window=(-1, -1), mask=None, bias=None, alibi_slopes=None, softcap=None, sink=None,
             block_q=None, block_k=None, reverse=False):
    """Gradients of a batch. Returns the named tuple (dq, dk, dv, dbias, dsink); dbias is always None.

    dout (B, Hq, Nq, dv) is the gradient that reaches out, dlse (B, Hq, Nq) the one that reaches lse (None for none).
    out and lse are what `forward` returned for the same q, k, v and options; see there for all of these.

    deterministic: the same bits in every run. "fa2" and "fa2_mma" add dq up with atomics otherwise, which is faster;
    the other kernels, and all gradients but dq, are deterministic in any case. On tensor cores block_q and block_k are
    multiples of 32.

    In device memory that is not torch's, lse, dlse and sink must have the accumulator dtype. An lse of another
    convention, with +inf or in base 2, is refused in host arrays; in CUDA tensors only by kernels on tensor cores, in
    their first call of a kind; elsewhere in device memory it is not noticed.
    """
    core = KERNELS[check_choice("kernel", kernel, KERNELS)]
    if kernel not in WITH_BACKWARD:
        raise NotImplementedError(f"the kernel {kernel} has no backward pass; {', '.join(WITH_BACKWARD)} have one, and "
                                  "each of them takes the out and lse of any kernel")
    given = (dout, q, k, v, out, lse) if dlse is None else (dout, q, k, v, out, lse, dlse)
    key = prepared.key_of(core, given, deterministic, threads, scale, causal, window, mask, bias, alibi_slopes, softcap,
                          sink, block_q, block_k, reverse)
    ready = prepared.known.get(key)
    if ready:
        return Gradients(*ready(*given), None, None)
    refuse(bias=bias, alibi_slopes=alibi_slopes)
    check_flag("deterministic", deterministic)
    place = places.place_of(optional="dlse", dout=dout, q=q, k=k, v=v, out=out, lse=lse, dlse=dlse)
    if kernel not in PLAIN:
        arrays.check_rows(kernel, dout=dout, q=q, k=k, v=v, out=out)
    with place.here():
        dsink_dtype = None if sink is None else place.known("sink", sink).dtype
        call, sink = make_call(place, kernel, True, q, k, v, mask, sink, threads, scale=scale, causal=causal,
                               window=window, softcap=softcap, block_q=block_q, block_k=block_k, reverse=reverse)
        B, Hq, Hkv, Nq, Nk, d, dv = call.sizes
        inputs.check_belongs("dout", place.known("dout", dout), (B, Hq, Nq, dv), call.dtype)
        inputs.check_belongs("out", place.known("out", out), (B, Hq, Nq, dv), call.dtype)
        inputs.check_statistics("lse", place.known("lse", lse), (B, Hq, Nq), call.wide)
        if arrays.may_be_read(lse, waits=bool(key)):                # such a call waits once, for its kernels too
            lse_read = inputs.check_lse(to_numpy("lse", lse), (B, Hq, Nq), call.wide)
            refuse_base_two(q, k, v, out, lse_read, call.options.sink, partial(head_rule, call.sizes, call.options))
        if dlse is not None:
            inputs.check_statistics("dlse", place.known("dlse", dlse), (B, Hq, Nq), call.wide)

        dO, Q, K, V, O = (place.load(x) for x in (dout, q, k, v, out))
        L = place.load(lse, call.wide)
        dL = call.constant(0, B, Hq, Nq) if dlse is None else place.load(dlse, call.wide)
        if 0 in (B, Nq, Nk):
            dQ, dK, dV = (place.full(shape, 0, call.dtype)
                          for shape in ((B, Hq, Nq, d), (B, Hkv, Nk, d), (B, Hkv, Nk, dv)))
        else:
            statistics = (call.constant(1, B, Hq, Nq), L) if core is fa1 else (L,)
            dQ, dK, dV = core.backward(call, dO, Q, K, V, O, *statistics, dL, deterministic)
            if key:
                prepared.remember(key, call, given, (dO, Q, K, V, O, L, dL)[:len(given)], (dQ, dK, dV))
            dQ = finish.narrowed(call, dQ) if kernel in PLAIN else dQ
        dsink = None
        if sink is not None:
            dsink = place.full((Hq,), 0, call.wide) if 0 in (B, Nq) else finish.sink_gradient(call, dO, O, L, dL, sink)
        grads = [place.result(x, call.dtype) for x in (dQ, dK, dV)]
        return Gradients(*grads, None, None if dsink is None else place.result(dsink, dsink_dtype))


def refuse(**options):
    """NotImplementedError for options that are set and that no kernel offers."""
    for name, x in options.items():
        if x is not None:
            raise NotImplementedError(
                f"{name} is not offered by the kernels; fa_ref.forward and fa_ref.backward offer it")


def make_call(place, kernel, backward, q, k, v, mask, sink, threads, *, block_q, block_k, **options):
    """Check everything that forward and backward share; returns the Call, and the sink in the accumulator dtype."""
    check_still()
    core = KERNELS[kernel]
    warps = getattr(core, "WARPS", None)
    q, k, v = (place.known(name, x) for name, x in (("q", q), ("k", k), ("v", v)))
    known_mask = None if mask is None else place.known("mask", mask)
    sizes = inputs.check_qkv(q, k, v)
    checked = check_options(
        sizes, q.dtype, mask=known_mask, sink=None if sink is None else place.known("sink", sink),
        block_q=block_q, block_k=block_k, **options)
    if known_mask is not None and known_mask.dtype != bool:
        refuse(**{f"a mask of dtype {known_mask.dtype}": mask})
    plan = getattr(core, "plan_backward" if backward else "plan", None)         # kernels that choose their own tiles
    block_q, block_k = (None if n is None else int(n) for n in (block_q, block_k))  # np.int64 is no constant to Numba
    if plan:
        threads, block_q, block_k = plan(limits(), sizes, q.dtype, checked, threads, block_q, block_k)
    threads = check_threads(threads, limits(), warps)
    check_grid((1, sizes.Hq, sizes.B), limits())                    # of every launch that may follow
    how = ({"threads": threads} if warps else {}) | ({"backward": backward} if kernel in WITH_BACKWARD else {})
    bytes_of = partial(core.shared_bytes, **how)
    what = f"the {'backward' if backward else 'forward'} kernel {kernel}"
    call = Call(place, sizes, q.dtype, checked, mask, threads, block_q, block_k, bytes_of, what,
                dynamic=plan is not None)
    return call, None if sink is None else place.load(sink, call.wide)
