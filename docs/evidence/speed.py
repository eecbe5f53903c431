"""How fast the forward pass was on a GPU, by docs/performance/forward.json and ladder.json.

"By its authors": torch's FLASH back end, which is the official FlashAttention-2. "Ours": `fa1_mma` and `fa2_mma`, after
the papers. torch's math back end is standard attention. As it works in float32, ratios to it are larger than to
standard attention in 16 bits, with which the papers compare.
"""

from cuda_kernels.bench import targets
from evidence.common import H100
from evidence.records import at_least, at_most, both, cells, dims, heads, measured, plain, rates, span, speeds, where

N, SHORT, LONG = 4096, 1024, 16384


@measured("forward")
def factor_to_fa1(forward, least=1.5):
    """FlashAttention-2 to 1, both ours, on tensor cores: with heads enough for the card, and with few long ones."""
    rows = [plain(forward, "fa1_mma", N=n) for n in (SHORT, LONG)]
    short, long = (speeds(found, "fa2_mma", "fa1_mma") for found in rows)
    at_least(min(short), least, "FlashAttention-2 to 1")
    return (f"{where(forward)}, forward, d = {dims(rows[0])}: our FlashAttention-2 is {span(short)} times as fast as "
            f"our FlashAttention-1 at N = {SHORT:,} ({heads(rows[0])} heads in all), {span(long)} times at N = "
            f"{LONG:,} ({heads(rows[1])} heads). Ours is FlashAttention-1 as printed, a block for each head; the "
            "papers compare with code that had split heads already, so their factor is smaller")


@measured("forward")
def factor_grows_when_heads_are_few(forward, least=2.0):
    """What the factor to FlashAttention-1 owes to the number of blocks."""
    rows = [plain(forward, N=n, d=128, causal=False) for n in (SHORT, LONG)]
    short, long = (speeds(found, "fa2_mma", "fa1_mma")[0] for found in rows)
    fa1, fa2 = ([rates(found, peer)[0] for found in rows] for peer in ("fa1_mma", "flash"))
    at_least(long / short, least, "the factor at a long and at a short length")
    return (f"{where(forward)}, forward, d = 128, from N = {SHORT:,} with {heads(rows[0])} heads to {LONG:,} with "
            f"{heads(rows[1])}: our FlashAttention-1, a block for each head, goes from {fa1[0]:.0f} to {fa1[1]:.0f} "
            f"TFLOP/s, FlashAttention-2 by its authors from {fa2[0]:.0f} to {fa2[1]:.0f}. The factor between both of "
            f"ours grows from {short:.1f} to {long:.1f}")


@measured("forward")
def factor_to_standard(forward, least=3.0):
    """FlashAttention-2 by its authors to standard attention."""
    rows = plain(forward, "flash", N=N, causal=False)
    found = speeds(rows, "flash", "math")
    at_least(min(found), least, "FLASH to math")
    return (f"{where(forward)}, forward, N = {N:,}, d = {dims(rows)}: FlashAttention-2 by its authors is {span(found)} "
            "times as fast as torch's math back end")


@measured("forward")
def fa1_to_standard(forward, least=1.5):
    """FlashAttention-1 as printed to standard attention: with heads enough for the card, and with few long ones."""
    rows = [plain(forward, "fa1_mma", N=n, causal=False) for n in (SHORT, LONG)]
    short, long = (speeds(found, "fa1_mma", "math") for found in rows)
    at_least(min(short), least, "FlashAttention-1 to math")
    return (f"{where(forward)}, forward, d = {dims(rows[0])}: our FlashAttention-1, a block for each head, is "
            f"{span(short)} times as fast as torch's math back end at N = {SHORT:,} ({heads(rows[0])} heads in all), "
            f"and {span(long)} times at N = {LONG:,} ({heads(rows[1])} heads)")


@measured("forward")
def gain_by_length(forward, least_at_128=2.0, most_growth=2.0, least_memory=10.0):
    """FlashAttention-2 by its authors to standard attention, from short to long: time and memory."""
    rows = [plain(forward, N=n, d=128, causal=False) for n in (128, 512, LONG)]
    time = [speeds(found, "flash", "math")[0] for found in rows]
    less = [cells(found, "math")[0]["mb"] / cells(found, "flash")[0]["mb"] for found in rows]
    at_least(time[0], least_at_128, "FLASH to math at N = 128")
    at_most(time[2] / time[0], most_growth, f"the factor at N = {LONG}, to that at N = 128")
    at_least(less[2] / less[0], least_memory, f"memory saved at N = {LONG}, to that at N = 128")
    return (f"{where(forward)}, forward, d = 128, N = 128, 512 and {LONG:,}: FlashAttention-2 by its authors is "
            f"{time[0]:.1f}, {time[1]:.1f} and {time[2]:.1f} times as fast as torch's math back end, and needs "
            f"{less[0]:.0f}, {less[1]:.0f} and {less[2]:.0f} times less memory beyond the inputs")


@measured("forward", "ladder")
def share_of_a_hopper_card(forward, ladder, least=25, most=60, least_products=70):
    """Percent of 989 TFLOP/s, the peak of H100 and H200: FlashAttention-2 by its authors, products, ours."""
    flash, fa2, fa1 = (max(rates(plain(forward), peer)) for peer in ("flash", "fa2_mma", "fa1_mma"))
    products = ladder["matrix_rate"]
    at_least(100 * flash / H100, least, "percent of the peak in FLASH")
    at_most(100 * flash / H100, most, "percent of the peak in FLASH")
    at_least(100 * products / H100, least_products, "percent of the peak in products alone")
    return (f"{both(forward, ladder)}, forward, bfloat16, the best of all lengths: FlashAttention-2 by its authors "
            f"reaches {flash:.0f} TFLOP/s, {flash / H100:.0%} of 989, the peak of H100 and H200, and "
            f"{flash / products:.0%} of the {products:.0f} that torch.matmul reaches, which is {products / H100:.0%} "
            f"of the peak. Our FlashAttention-2 reaches {fa2:.0f}, {fa2 / H100:.0%}; our FlashAttention-1 {fa1:.0f}, "
            f"{fa1 / H100:.0%}")


@measured("forward")
def heads_of_llama(forward, least=1.3):
    """64 query heads on 8, d = 128, N = 4096: FlashAttention-2 by its authors, and a kernel for Hopper."""
    rows = {case: row for case, row in targets.by_case(forward["cells"]).items()
            if (case.H, case.Hkv, case.d, case.N) == (64, 8, 128, N)}
    flash, cudnn = ([rate / H100 for rate in rates(rows, peer)] for peer in ("flash", "cudnn"))
    found = speeds(rows, "cudnn", "flash")
    at_least(min(found), least, "cuDNN to FLASH")
    return (f"{where(forward)}, forward, 64 query heads on 8, d = 128, N = {N:,}, without a mask and causal: "
            f"FlashAttention-2 by its authors reaches {flash[0]:.0%} and {flash[1]:.0%} of 989 TFLOP/s. cuDNN's kernel "
            f"for Hopper, which is not FlashAttention-3, reaches {cudnn[0]:.0%} and {cudnn[1]:.0%}, {found[0]:.1f} and "
            f"{found[1]:.1f} times as much")


@measured("forward")
def more_heads_fill_the_card(forward, least=1.5, most=1.2):
    """One length with a few heads and with more of them: for a block per head, and for many blocks per head."""
    rows = {case: row for case, row in targets.by_case(forward["cells"]).items()
            if (case.d, case.N, case.causal) == (128, N, False)}
    few, many = sorted(rows, key=lambda case: case.B * case.H)      # the latter are in groups
    gain = {peer: rates({many: rows[many]}, peer)[0] / rates({few: rows[few]}, peer)[0]
            for peer in ("fa1_mma", "flash")}
    at_least(gain["fa1_mma"], least, "FlashAttention-1 with more heads")
    at_most(gain["flash"], most, "FlashAttention-2 with more heads")
    return (f"{where(forward)}, forward, d = 128, N = {N:,}: with {many.B * many.H} heads in all, in groups of "
            f"{many.H // many.Hkv}, our FlashAttention-1, a block for each head, does {gain['fa1_mma']:.2f} times as "
            f"many TFLOP/s as with {few.B * few.H} heads; FlashAttention-2 by its authors {gain['flash']:.2f} times")
