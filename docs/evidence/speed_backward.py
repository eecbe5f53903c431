"""How fast the backward pass was on a GPU, by docs/performance/backward.json; words as in speed.py."""

from cuda_kernels.bench.targets import tera
from evidence.common import H100
from evidence.records import at_least, at_most, both, measured, plain, rates, span, where
from evidence.speed import N

BACKWARD = "backward"


@measured("forward", "backward")
def backward_is_behind_forward(forward, backward, most=0.95):
    """The rate of the backward pass to that of the forward pass, both of FlashAttention-2 by its authors."""
    ahead, behind = rates(plain(forward, N=N), "flash"), rates(plain(backward, N=N), "flash", BACKWARD)
    at_most(max(behind) / max(ahead), most, "backward to forward, the best rates")
    return (f"{both(forward, backward)}, N = {N:,}: FlashAttention-2 by its authors does {span(behind, '.0f')} TFLOP/s "
            f"backward and {span(ahead, '.0f')} forward, where backward counts five products and forward two, as in "
            f"the papers; at best, backward has {max(behind) / max(ahead):.0%} of the rate of forward")


@measured("backward")
def backward_share_of_a_hopper_card(backward, most=57):
    """Percent of 989 TFLOP/s in the backward pass: FlashAttention-2 by its authors, and ours."""
    flash, fa2 = (max(rates(plain(backward), peer, BACKWARD)) for peer in ("flash", "fa2_mma"))
    at_most(100 * flash / H100, most, "percent of the peak in FLASH, backward")
    return (f"{where(backward)}, backward, bfloat16, the best of all lengths: FlashAttention-2 by its authors reaches "
            f"{flash:.0f} TFLOP/s, {flash / H100:.0%} of 989, the peak of H100 and H200; ours {fa2:.0f}, "
            f"{fa2 / H100:.0%}")


@measured("forward", "backward")
def both_passes_on_a_hopper_card(forward, backward, least=250, most=500):
    """TFLOP/s of both passes together, as FA2 prints them for H100."""
    there, back = plain(forward, "flash"), plain(backward, "flash")
    found = {}
    for case in there:
        if case in back:
            ms = there[case]["flash"]["ms"] + back[case]["flash"]["ms"]
            found[case] = tera(case, ms) + tera(case, ms, BACKWARD)
    best = max(found, key=found.get)
    at_least(found[best], least, "TFLOP/s of both passes")
    at_most(found[best], most, "TFLOP/s of both passes")
    return (f"{both(forward, backward)}, forward and backward together: FlashAttention-2 by its authors reaches "
            f"{found[best]:.0f} TFLOP/s at d = {best.d}, N = {best.N:,}, {best.kind}, the best of all lengths")
