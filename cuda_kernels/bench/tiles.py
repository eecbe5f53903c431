"""What the shape of tiles is worth in the backward pass on tensor cores: one problem with each shape that fits.

    python -m cuda_kernels tiles                            a minute on a GPU, most of it to compile
    python -m cuda_kernels tiles --save tiles.json          kept for `python docs/generate.py tiles`

Br · Bc numbers of S and of dP, Bc · d of dK and of dV lie in the registers of a block's threads. Large tiles are loaded
less often, and there is more to do between two barriers; small ones may leave room for a second block.
"""

import statistics
from functools import partial

import cuda_kernels
from cuda_kernels import prepared, tensor_cores
from cuda_kernels.bench import check_save, parser_of, save, unable
from cuda_kernels.bench.grid import DIMS, HIDDEN, TOKENS, Case
from cuda_kernels.swizzled import padded
from fa_ref.terminal import console, tabled

LENGTH, BUDGET_MS = 4096, 500
HEAD = ["d", "Br × Bc", "warps", "ms", "to the chosen one", "error, of what is allowed", "registers", "local, bytes",
        "shared, bytes", "blocks at once"]
NUMBERS = range(2, len(HEAD))


def shapes(d):
    """[(Br, Bc)] for a head dim; the first is what a call without block_q and block_k takes on a large GPU."""
    return [(Br, Bc) for Br, Bc in tensor_cores.ON_A_GPU if Br * Bc * padded(d) <= tensor_cores.LARGEST_BACKWARD]


def measured(device, dims=DIMS, N=LENGTH, step=lambda what: None):
    """[{d, Br, Bc, ms, error, allowed, and what `resources` says}], or why a shape cannot be had on this card.

    Causal attention over `grid.TOKENS` tokens. device: a `clock.Gpu`. Forgets all calls that are kept ready.
    """
    from cuda_kernels.bench import backward, measure, peers  # these import torch

    rows = []
    for d in dims:
        case = Case(TOKENS // N, HIDDEN // d, HIDDEN // d, N, d, True)
        q, k, v, dout = given = backward.tensors(case, device)
        out, lse = cuda_kernels.forward(q, k, v, kernel="fa2_mma", causal=True)
        known, timed = backward.yardstick(*given, True), {}
        for Br, Bc in shapes(d):
            step(f"d = {d}, {Br} × {Bc}")
            call = partial(with_tiles, Br, Bc, dout, q, k, v, out, lse)
            rows.append({"d": d, "Br": Br, "Bc": Bc})
            prepared.known.clear()
            gradients, why = peers.tried(call)
            if why:
                rows[-1]["why"] = why
                continue
            error, allowed = backward.errors(gradients, known)
            rows[-1] |= {"error": error, "allowed": allowed} | of_a_block()
            timed[len(rows) - 1] = call
        for n, times in zip(timed, measure.timed(device, list(timed.values()), BUDGET_MS), strict=True):
            rows[n]["ms"] = statistics.median(times)
    return rows


def with_tiles(Br, Bc, dout, q, k, v, out, lse):
    """dQ, dK, dV."""
    return cuda_kernels.backward(dout, q, k, v, out, lse, kernel="fa2_mma", causal=True, block_q=Br, block_k=Bc)[:3]


def of_a_block():
    """What `resources` says of the main kernel, if the last call is kept ready."""
    from cuda_kernels.bench import resources

    return next((row for row in resources.used("backward") if row["kernel"].endswith("backward")), {})


def table(rows):
    """The lines under HEAD; the first shape that can be had is the one that is chosen."""
    chosen = {}
    for row in rows:
        if "why" in row:
            yield str(row["d"]), f"{row['Br']} × {row['Bc']}", row["why"], *["–"] * (len(HEAD) - 3)
            continue
        first = chosen.setdefault(row["d"], row["ms"])
        yield (str(row["d"]), f"{row['Br']} × {row['Bc']}", f"{row['threads'] // 32}", f"{row['ms']:.3f}",
               f"{first / row['ms']:.2f} ×", f"{row['error'] / row['allowed']:.2f}",
               *(f"{row[name]:,}" for name in ("registers", "local", "shared", "blocks")))


def main(argv=None):
    """Measure, show, save; returns 0, 1 if a gradient is wrong, or 2 where nothing can be measured."""
    parser = parser_of("tiles", __doc__)
    options = parser.parse_args(argv)
    check_save(parser, options.save)
    why = unable("tiles")
    if why:
        print(why)
        return 2
    from cuda_kernels.bench import backward, clock, measure, show

    with show.progress(sum(len(shapes(d)) for d in DIMS)) as step:
        rows = measured(clock.Gpu(at_once=backward.AT_ONCE), step=step)
    record = {"on": measure.machine(), "pass": "backward", "N": LENGTH, "rows": rows}
    save(options.save, record)
    console.print(tabled(*HEAD, right=NUMBERS, rows=table(rows)))
    return 0 if all(row["error"] <= row["allowed"] for row in rows if "why" not in row) else 1
