"""FlashMask: how many tiles a mask leaves, counted with rule.kind, and the FLOPs that follow."""

from fa_ref.scores import EMPTY, Rule, tiles
from fa_ref.tables.arithmetic import attention_flops
from fa_ref.tables.rows import Table, row

TILE, TOKENS, HEADS, D = 128, 128 * 1024, 32, 128
# mask: {N: (forward TFLOPs, share of empty tiles)}, as printed
PRINTED = {"full": {8: ("17.59", "0.00"), 32: ("70.37", "0.00"), 128: ("281.48", "0.00")},
           "causal": {8: ("8.93", "0.49"), 32: ("35.32", "0.50"), 128: ("140.88", "0.50")},
           "sliding window": {8: ("1.33", "0.92"), 32: ("4.53", "0.94"), 128: ("17.31", "0.94")}}


def sparsity():
    """Forward FLOPs and the share of empty tiles, for the masks whose parameters are known."""
    rows = []
    for mask, sizes in PRINTED.items():
        for thousand, (tflops, empty) in sizes.items():
            N = thousand * 1024
            share = empty_share(mask, N)
            ours = attention_flops(N, D, HEADS, TOKENS // N) * (1 - share) / 1e12
            rows.append(row(f"{mask}, N = {thousand}K, TFLOPs forward", tflops, ours, ".2f",
                            within=0.002))
            rows.append(row(f"{mask}, N = {thousand}K, empty tiles", empty, share, ".2f"))
    N = 128 * 1024
    return Table("Tiles that a mask leaves", "FlashMask (2410.01359), kernel tables", [
        *rows,
        row("dense 16-bit mask at 64K, GiB", "8", (64 * 1024) ** 2 * 2 / 2**30, ".0f"),
        row("four int32 vectors at 128K, MiB", "2", 4 * N * 4 / 2**20, ".0f"),
        row("full, N = 8K, TFLOPs backward", "43.98",
            attention_flops(8 * 1024, D, HEADS, TOKENS // (8 * 1024), backward=True) / 1e12, ".2f"),
    ], "128K tokens in all, 32 heads, d = 128, tiles 128 × 128. The sliding window is causal and N/16 wide: found by "
       "trying. Other masks of the tables are drawn at random or their parameters are not printed.")


def empty_share(mask, N):
    """Empty tiles of all tiles."""
    window = (N // 16 if mask == "sliding window" else -1, -1)
    rule, slices = Rule(N, N, scale=1.0, causal=mask != "full", window=window), tiles(N, TILE)
    return sum(rule.kind(rows, cols) == EMPTY for rows in slices for cols in slices) / len(slices) ** 2
