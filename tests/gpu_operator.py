"""The operator of torch on a GPU: as torch wants operators, its gradients, compiled, cast, on streams, in graphs.

A row for each dtype. What takes a device runs on the CPU too, by the loops of `fa_ref`: test_torch_op.py tries that.
"""

import importlib.util
from functools import partial
from unittest import mock

import torch
from torch.nn.functional import scaled_dot_product_attention as torchs_own

from cuda_kernels.bench.truth import compared, error
from cuda_kernels.torch_op import operators, scaled_dot_product_attention
from cuda_kernels.torch_op.operators import HALVES
from fa_ref.testing import Problem, Result, oracle, tolerance
from fa_ref.testing.standard_16bit import float64_truth, two_errors
from gpu_arrays import DEVICE, judged, on_host, rows

attention = torch.ops.fa_ref.attention
attention_backward = torch.ops.fa_ref.attention_backward
NAMES = "float16", "bfloat16"
HOW = {"causal": True, "deterministic": True}
OPTIONS = {}, {"causal": True}, {"causal": True, "scale": 0.3}, {"window_left": 20, "window_right": 10}
LENGTHS = (70, 100), (100, 70), (64, 64)                            # with causal, some of 100 rows see none of 70 keys


def tensors(device, dtype, Nq=70, Nk=100, tokens=False, grad=True, heads=(4, 2), d=64):
    """q, k, v (2, H, N, d) of random numbers. tokens: they lie token by token, as a linear layer leaves them."""
    found = []
    for H, N in ((heads[0], Nq), (heads[1], Nk), (heads[1], Nk)):
        shape = (2, N, H, d) if tokens else (2, H, N, d)
        x = torch.randn(shape, device=device, dtype=getattr(torch, dtype))
        found.append((x.transpose(1, 2) if tokens else x).requires_grad_(grad))
    return found


def same(found, wanted, what):
    """AssertionError unless both have the same bits."""
    for n, (x, y) in enumerate(zip(found, wanted, strict=True)):
        assert torch.equal(x, y), f"{what}: result {n} differs by up to {error(x, y):.3g}"


def solved(x, dout, dlse, **options):
    """(out, lse, dq, dk, dv)."""
    out, lse = attention(*x, **options)
    return out.detach(), lse.detach(), *torch.autograd.grad((out, lse), x, (dout, dlse))


def gradients_of(x):
    """Random numbers that reach out and lse of `attention` for x: dout lies as out does."""
    out, lse = attention(*(y.detach() for y in x))
    return torch.randn_like(out), torch.randn_like(lse)


# --- as torch wants it ----------------------------------------------------------------------------------------

def accepted(name, device=DEVICE):
    """By torch.library.opcheck: schema, autograd, what shapes and strides are foretold, and traced by AOTAutograd."""
    count = 0
    for tokens in (False, True):
        x = tensors(device, name, tokens=tokens)
        for options in ((False, None, -1, -1), (True, 0.3, -1, -1), (False, None, 20, 10)):
            torch.library.opcheck(attention.default, (*x, *options, True))
            q, k, v = (y.detach() for y in x)
            out, lse = attention(q, k, v, *options)
            for dlse in (None, torch.ones_like(lse)):
                arguments = (torch.ones_like(out), q, k, v, out, lse, dlse, *options, True)
                torch.library.opcheck(attention_backward.default, arguments)
                count += 1
    return f"{count} calls, forward and backward"


# --- the numbers ----------------------------------------------------------------------------------------------

def right(name, device=DEVICE, lengths=LENGTHS):
    """out, lse and the gradients of both, against float64: in 16 bits by the rule of two errors, and all by bounds."""
    worst, count = 0.0, 0
    for Nq, Nk in lengths:
        for tokens in (False, True):
            for options in OPTIONS:
                x = tensors(device, name, Nq, Nk, tokens)
                dout, dlse = gradients_of(x)
                what = f"{Nq} × {Nk}, {options}{', token by token' * tokens}"
                worst = max(worst, within(solved(x, dout, dlse, **options), (*x, dout, dlse), options, what))
                count += 1
    return f"{count} problems, worst {worst:.2f} of what is allowed"


def within(answer, given, options, what):
    """The worst error as a fraction of what is allowed; AssertionError where it is more."""
    arrays = dict(zip(("q", "k", "v", "dout", "dlse"), (on_host(x.detach()) for x in given), strict=True))
    p = Problem(**arrays, causal=options.get("causal", False), scale=options.get("scale"),
                window=(options.get("window_left", -1), options.get("window_right", -1)))
    result = Result(*map(on_host, answer))
    worst = judged(result, oracle.solve(p), tolerance.bounds(p), f"{what}: ")
    if given[0].dtype in HALVES:
        verdicts = two_errors(result, float64_truth(p), p, round_scores=False)
        for name in ("out", "dq", "dk", "dv"):
            v = verdicts[name]
            assert v.ok, f"{what}: {name} is {v.error:.3g} from the truth, {v.allowed:.3g} is allowed"
            worst = max(worst, v.error / v.allowed)
    return worst


def asked(name, device=DEVICE):
    """Which kernel computes, forward and backward."""
    x = tensors(device, name)
    package, how = operators.package_for(x[0])
    (option,) = how
    with (mock.patch.object(package, "forward", wraps=package.forward) as forward,
          mock.patch.object(package, "backward", wraps=package.backward) as backward):
        attention(*x)[0].sum().backward()
    kernels = {call.call_args.kwargs[option] for call in (forward, backward)}
    wanted = "fa2_mma" if x[0].is_cuda and x[0].dtype in HALVES else "fa2"
    assert kernels == {wanted}, f"{kernels} instead of {wanted}"
    return f"{package.__name__}, {wanted}"


def spread(name, device=DEVICE):
    """The gradient that sum() sends, one number for all of out, gives what the same numbers in memory give."""
    x = tensors(device, name)
    out, _ = attention(*x, **HOW)
    one = torch.ones((), device=device, dtype=out.dtype).expand(out.shape)
    same(torch.autograd.grad(out, x, one, retain_graph=True), torch.autograd.grad(out, x, torch.ones_like(out)), name)
    return "the same bits"


def by_setting(name, device=DEVICE, N=1000):
    """torch.use_deterministic_algorithms makes it deterministic: the same bits in ten runs."""
    x = tensors(device, name, N, N)
    given = gradients_of(x)
    torch.use_deterministic_algorithms(True)
    try:
        first, *others = [solved(x, *given, causal=True) for _ in range(10)]
    finally:
        torch.use_deterministic_algorithms(False)
    for other in others:
        same(other, first, "another run")
    return "the same bits in 10 runs"


def in_place_of_torchs(name, device=DEVICE):
    """The stand-in beside torch's own, as near to float64: out and gradients, is_causal, all lengths, grouped heads."""
    worst, count = 0.0, 0
    for Nq, Nk in LENGTHS:
        for causal in (False, True):
            for heads in ((4, 4), (4, 2)):
                how = {"is_causal": causal, "enable_gqa": heads[0] != heads[1], "scale": 0.3 if causal else None}
                x = tensors(device, name, Nq, Nk, heads=heads)
                dout = torch.randn_like(x[0])
                found, plain, truth = (with_gradients(function, y, dout, how) for function, y in (
                    (scaled_dot_product_attention, x), (torchs_own, x), (torchs_own, [y.double() for y in x])))
                for part, a, b, c in zip(("out", "dq", "dk", "dv"), found, plain, truth, strict=True):
                    assert a.dtype == b.dtype and a.shape == b.shape, (part, a.dtype, b.dtype)
                    _, others, noise = compared(c, b)
                    allowed = 2 * others + 2 * noise
                    fraction = error(a, c) / allowed
                    assert fraction <= 1, f"{Nq} × {Nk}, {how}: {part} has {fraction:.2f} of the error that is allowed"
                    worst = max(worst, fraction)
                count += 1
    return f"{count} problems, worst {worst:.2f} of twice torch's error and the noise"


def with_gradients(function, x, dout, how):
    """[out, dq, dk, dv] of a function with torch's signature."""
    x = [y.detach().requires_grad_() for y in x]
    out = function(*x, **how)
    return [out.detach(), *torch.autograd.grad(out, x, dout.to(out.dtype))]


# --- compiled, cast, differentiated by torch.func -------------------------------------------------------------

def layer(x, H=2, d=64):
    """Attention in a layer: x (B, N, 3·H·d) is what a linear layer gives. What is around it does not round."""
    q, k, v = (2 * x).unflatten(2, (3, H, d)).permute(2, 0, 3, 1, 4)
    out, lse = attention(q, k, v, **HOW)
    return out.transpose(1, 2).flatten(2) / 2, 2 * lse


def compiled(name, backend, device=DEVICE, lengths=(70, 90, 110)):
    """In one graph, at lengths that differ: the same bits as without, forward and backward."""
    if backend == "inductor" and device != "cpu" and not importlib.util.find_spec("triton"):
        return "not tried: there is no triton here"
    torch.compiler.reset()
    fast = torch.compile(layer, fullgraph=True, backend=backend)
    for N in lengths:
        x = torch.randn(2, N, 3 * 2 * 64, device=device, dtype=getattr(torch, name), requires_grad=True)
        answers = []
        for function in (layer, fast):
            y, lse = function(x)
            answers.append([y, lse, *torch.autograd.grad((y, lse), x, (torch.ones_like(y), torch.ones_like(lse)))])
        same(*answers, f"N = {N}")
    return f"the same bits at N = {', '.join(map(str, lengths))}"


def cast(name, device=DEVICE):
    """Under autocast to bfloat16: dtypes as torch's own has them, of out and of gradients; values near torch's."""
    x = tensors(device, name, heads=(2, 2))
    outs, dtypes = [], []
    for function in (scaled_dot_product_attention, torchs_own):
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            outs.append(function(*x))
        dtypes.append([y.dtype for y in (outs[-1], *torch.autograd.grad(outs[-1].sum(), x))])
    assert dtypes[0] == dtypes[1], f"{dtypes[0]}, torch's {dtypes[1]}"
    eps = max(torch.finfo(dtypes[0][0]).eps, torch.finfo(torch.float32).eps)
    apart, allowed = error(*outs), 4 * eps * float(outs[1].detach().abs().max())
    assert apart <= allowed, f"{apart:.3g} from torch's, {allowed:.3g} is allowed"
    return f"out {dtypes[0][0]}, gradients {dtypes[0][1]}, as torch's"


def by_func(name, device=DEVICE):
    """torch.func.grad and vmap of it give the bits of torch.autograd.grad; what goes forwards is refused."""
    def loss(q, k, v):
        out, lse = attention(q, k, v, **HOW)
        return out.float().sin().sum() + lse.sin().sum()

    x = tensors(device, name, Nq=100)
    wanted, plain = torch.autograd.grad(loss(*x), x), [y.detach() for y in x]
    same(torch.func.grad(loss, (0, 1, 2))(*plain), wanted, "grad")
    mapped = torch.func.vmap(torch.func.grad(loss, (0, 1, 2)))(*(torch.stack([y, y]) for y in plain))
    same([y[1] for y in mapped], wanted, "vmap of grad")
    refused(NotImplementedError, "goes forwards", lambda: torch.func.jvp(loss, tuple(plain), tuple(plain)))
    return "the same bits"


# --- refused --------------------------------------------------------------------------------------------------

def refused(kind, text, call):
    """AssertionError unless the call is refused by an error of this kind with this text."""
    try:
        call()
    except kind as told:
        assert text in str(told), f"refused in other words: {told}"
    else:
        raise AssertionError(f"not refused: {text}")


def refuses(name, device=DEVICE, other="cpu"):
    """A second derivative, tensors on two devices, other dtypes, axes and windows."""
    q, k, v = tensors(device, name)
    (dq,) = torch.autograd.grad(attention(q, k, v)[0].float().square().sum(), q, create_graph=True)
    doubled, there = k.double(), k.to(other)
    cases = [
        (NotImplementedError, "fa_ref::attention has no second derivative", lambda: dq.sum().backward()),
        (TypeError, f"k is a torch tensor on {other}", lambda: attention(q, there, v)),
        (TypeError, f"q is a torch tensor on {other}", lambda: attention(q.to(other), k, v)),
        (TypeError, f"key is a torch tensor on {other}", lambda: scaled_dot_product_attention(q, there, v)),
        (TypeError, "must share one dtype", lambda: attention(q, doubled, v)),
        (ValueError, "must have 4 axes", lambda: attention(q[0], k, v)),
        (ValueError, "window left must be at least -1, got -2", lambda: attention(q, k, v, window_left=-2)),
    ]
    for case in cases:
        refused(*case)
    return f"{len(cases)} kinds refused in words"


# --- streams and graphs, on a GPU only ------------------------------------------------------------------------

def aside(name):
    """On another stream, where the numbers arrive late: forward and backward wait for them, the caller does not."""
    real = tensors("cuda", name)
    given = gradients_of(real)
    wanted = solved(real, *given, **HOW)
    late, late_given = [torch.zeros_like(x, requires_grad=True) for x in real], [torch.zeros_like(x) for x in given]
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)                              # about a tenth of a second
        with torch.no_grad():
            for x, y in zip((*late, *late_given), (*real, *given), strict=True):
                x.copy_(y)
        found = solved(late, *late_given, **HOW)
        waited = side.query()
    side.synchronize()
    same(found, wanted, "another stream")
    assert not waited, "the caller has waited for the stream"
    return "the same bits, and the caller did not wait"


def captured(name):
    """Forward and backward in one CUDA graph, replayed with other numbers in the same places."""
    x = tensors("cuda", name)
    given = gradients_of(x)

    def step():
        return solved(x, *given, **HOW)

    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = step()
    for replay in range(3):
        with torch.no_grad():
            for y in (*x, *given):
                y.copy_(torch.randn_like(y))
        graph.replay()
        torch.cuda.synchronize()
        same(kept, step(), f"replay {replay}")
    return "3 replays with other numbers, the same bits as calls"


CHECKS = (("opcheck", accepted, (*NAMES, "float32")), ("gradients", right, (*NAMES, "float32")),
          ("which kernel", asked, (*NAMES, "float32", "float64")), ("a gradient of one number", spread, NAMES),
          ("deterministic by torch's setting", by_setting, (*NAMES, "float32")),
          ("in place of torch's", in_place_of_torchs, NAMES),
          ("torch.compile, aot_eager", partial(compiled, backend="aot_eager"), NAMES),
          ("torch.compile, inductor", partial(compiled, backend="inductor"), NAMES),
          ("autocast", cast, (*NAMES, "float32", "float64")), ("torch.func", by_func, NAMES),
          ("bad input", refuses, (*NAMES, "float32")), ("another stream", aside, (*NAMES, "float32")),
          ("CUDA graph", captured, NAMES))


def operator(report):
    """All of these, a row for each dtype."""
    for what, check, names in CHECKS:
        rows(report, f"operator, {what}", check, names)
