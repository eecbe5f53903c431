"""What torch's allocator gave to attention on a GPU, by docs/performance/forward.json and backward.json.

Words are those of speed.py.
"""

from evidence.records import at_least, at_most, measured, plain, span, where
from evidence.speed import N


def growth(record, peers):
    """(the shortest N, the longest, {peer: its memory beyond the inputs at the longest, to that at the shortest})."""
    rows = [row for row in record["memory"] if all(isinstance(row[peer], float) for peer in peers)]
    first, last = rows[0], rows[-1]
    return first["N"], last["N"], {peer: last[peer] / first[peer] for peer in peers}


@measured("forward")
def memory_by_length(forward, most=1.1, least_standard=4.0):
    """How memory grows in the forward pass, to how the length grows."""
    first, last, more = growth(forward, ("flash", "fa1_mma", "math"))
    longer = last / first
    at_most(max(more["flash"], more["fa1_mma"]) / longer, most, "growth of memory to growth of N, FlashAttention")
    at_least(more["math"] / longer, least_standard, "growth of memory to growth of N, standard attention")
    return (f"{where(forward)}, forward, 16 heads, d = 128, from N = {first:,} to {last:,}: memory beyond the inputs "
            f"grows {more['flash']:.0f} times in FlashAttention-2 by its authors, {more['fa1_mma']:.0f} times in our "
            f"FlashAttention-1, {more['math']:.0f} times in torch's math back end")


@measured("backward")
def memory_of_both_passes(backward, most=1.1, least_standard=4.0):
    """The same of forward and backward pass, with what is kept in between."""
    first, last, more = growth(backward, ("flash", "math"))
    longer = last / first
    at_most(more["flash"] / longer, most, "growth of memory to growth of N, FlashAttention")
    at_least(more["math"] / longer, least_standard, "growth of memory to growth of N, standard attention")
    return (f"{where(backward)}, forward and backward, 16 heads, d = 128, from N = {first:,} to {last:,}: memory "
            f"beyond the inputs grows {more['flash']:.0f} times in FlashAttention-2 by its authors, "
            f"{more['math']:.0f} times in torch's math back end")


@measured("forward")
def one_number_a_row(forward, least=3.5, most=4.5):
    """Bytes for each row that FlashAttention-2 by its authors makes beyond O."""
    found = []
    for case, row in plain(forward, "flash", N=N).items():
        rows = case.B * case.H * case.N
        found.append((row["flash"]["mb"] * 2**20 - rows * case.d * 2) / rows)
    at_least(min(found), least, "bytes a row")
    at_most(max(found), most, "bytes a row")
    return (f"{where(forward)}, forward, N = {N:,}: beyond O, FlashAttention-2 by its authors makes {span(found)} "
            "bytes for each row, one number in float32")
