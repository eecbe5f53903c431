"""Arithmetic on numbers that the papers print. TFLOP/s are theirs."""

from evidence.common import A100, H100, arithmetic, same


@arithmetic
def products_are_faster(ratio=16):
    """An A100's tensor cores against its other units."""
    same(A100 / 19.5, ratio, 3)
    return f"A100: 312 TFLOP/s of products to 19.5 of other FLOPs is {ratio} to 1"


@arithmetic
def plots_of_fa2(a100=(1.6, 2.4, 1.8, 2.3), h100=2.4):
    """FA2 to FA1, forward and backward at 16k, from the labels of the official plots."""
    labels = [(110, 176), (83, 203), (97, 171), (83, 189)]              # d = 64, 128, and causal
    same([new / old for old, new in labels], list(a100), 1)
    same(338 / 139, h100, 1)
    return (f"FlashAttention-2 to 1, forward and backward together, 16k, from the labels of the official plots: "
            f"{min(a100)} to {max(a100)} on A100, {h100} on H100 at d = 128")


@arithmetic
def share_of_the_peak(forward=74, training=72, gemm=80):
    """TFLOP/s that FA2 prints, of an A100's 312."""
    found = [100 * tflops / A100 for tflops in (230, 225)]
    same(found, [forward, training], 0)
    assert max(found) < gemm, "below what products alone reach"
    return (f"FlashAttention-2 on A100: at most 230 TFLOP/s forward, {forward}% of 312 TFLOP/s (the paper rounds "
            f"down), and 225 in training, {training}%. Both stay below the {gemm} to 90% that the paper gives for "
            "products alone")


@arithmetic
def training_without_flash(below_100=2, of=4):
    """Table 1 of FA2, the column without FlashAttention."""
    column = {"1.3B 2k": 142, "1.3B 8k": 72, "2.7B 2k": 149, "2.7B 8k": 80}
    same([sum(t < 100 for t in column.values()), len(column)], [below_100, of])
    return (f"Table 1 without FlashAttention: {', '.join(f'{k} {t}' for k, t in column.items())} TFLOP/s; "
            f"{below_100} of {of} are below 100")


@arithmetic
def h100_without_its_instructions(percent=34):
    """335 of an H100's 989 TFLOP/s."""
    same(100 * 335 / H100, percent, 0)
    return f"335 of 989 TFLOP/s is {percent}% of an H100's peak; FA3's abstract says 35%"


@arithmetic
def sixteen_for_eight(at_8k=0.139, at_16k=0.144):
    """Milliseconds for a token of a 2.7B model: 8k with FA1's rate, 16k with FA2's."""
    layers, hidden, parameters = 32, 2560, 2.7e9
    flops = [6 * parameters + 12 * layers * hidden * N for N in (8192, 16384)]
    same([flops[0] / 175e12 * 1e3, flops[1] / 225e12 * 1e3], [at_8k, at_16k], 3)
    return (f"2.7B model, FLOPs as FA2 counts them: {flops[0] / 1e9:.1f} GFLOP a token at 8k, {flops[1] / 1e9:.1f} "
            f"at 16k. At 175 and 225 TFLOP/s that is {at_8k} and {at_16k} ms, if the rate of 8k holds at 16k")


@arithmetic
def fa3_peaks(arxiv=75, neurips=85):
    """The best case of both versions of the FA3 paper."""
    same([100 * 740 / H100, 100 * 840 / H100], [arxiv, neurips], 0)
    return f"740 of 989 TFLOP/s is {arxiv}% (arXiv), 840 is {neurips}% (NeurIPS)"


@arithmetic
def fa3_at_4k(full=65, causal=59):
    """FA3 forward at d = 128 and 4k, labels of its Figure 5."""
    same([100 * 638 / H100, 100 * 579 / H100], [full, causal], 0)
    return f"d = 128, 4k: 638 TFLOP/s is {full}% of 989, causal 579 is {causal}%; 75% belongs to d = 256"


@arithmetic
def fa3_backward(percent=57, to_fa2=1.74):
    """The best backward rate of FA3."""
    same(100 * 561 / H100, percent, 0)
    same(561 / 322, to_fa2, 2)
    return f"the best backward rate, 561 TFLOP/s, is {percent}% of 989 and {to_fa2} times FlashAttention-2's 322"


@arithmetic
def fp8_speed(times=1.6):
    """FP8 to 16 bits, best cases."""
    same(1200 / 740, times, 1)
    return f"close to 1.2 PFLOP/s to 740 TFLOP/s is {times} at best"


@arithmetic
def amdahl(first=15, second=12, limit=25):
    """Percent faster, if attention's share of the time falls as claimed; and if attention cost nothing."""
    def faster(before, after):
        rest = 1 - before
        return 100 * ((1 - after) / rest - 1)                           # new time = rest / (1 − after)

    same([faster(0.20, 0.08), faster(0.15, 0.05), faster(0.20, 0)], [first, second, limit], 0)
    return (f"a share that falls from 20% to 8% makes training {first}% faster, from 15% to 5% {second}%. 30% cannot "
            f"be had: with attention for nothing, a share of 20% gives {limit}%")
