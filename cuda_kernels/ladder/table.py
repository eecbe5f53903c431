"""The tables of the ladder: one for each head dim, causal or not, a line for each rung."""

from cuda_kernels.ladder import NAMES, run
from fa_ref.terminal import console, tabled

HEAD = ("rung", "what it brings", "ms", "× the rung before", "predicted", "× FLASH", "of the matrix rate", "registers",
        "local, bytes", "on chip, KiB")
NUMBERS = range(2, len(HEAD))
PREDICTED_FOR = 128, True                                           # d, causal


def title(name):
    """What a rung brings: the first line of its docstring."""
    return run.rung(name).__doc__.splitlines()[0].partition(": ")[2].removesuffix(".")


def tables(found):
    """[(d, causal, [a line as HEAD has it])] of what `measure.measured` returned."""
    cases = sorted({(row["d"], row["causal"]) for row in found["rows"]})
    return [(d, causal, lines(found, d, causal)) for d, causal in cases]


def lines(found, d, causal):
    """The lines of one table."""
    rows = [row for row in found["rows"] if (row["d"], row["causal"]) == (d, causal)]
    times = {row["rung"]: row["ms"] for row in rows if not row["spills"]}
    return [line(row, times, found["matrix_rate"]) for row in rows]


def line(row, times, matrix_rate):
    """One line. times: {rung: ms} of this table; matrix_rate in TFLOP/s."""
    name, module = row["rung"], run.rung(row["rung"])
    before = times.get(NAMES[NAMES.index(name) - 1]) if name != NAMES[0] else None
    told, predicted = title(name), module.PREDICTED
    if row["spills"]:
        told, predicted = f"{row['tiles'][0]} rows for each warp: too many", module.PREDICTED_SPILLS
    asked = (row["d"], row["causal"]) == PREDICTED_FOR
    expected = f"{predicted:g}" + (" of FLASH" if name == NAMES[0] else "") if asked else ""
    rate = row["flop"] / row["ms"] / 1e9
    return (name, told, f"{row['ms']:.2f}", f"{before / row['ms']:.2f}" if before else "–", expected,
            f"{row['flash_ms'] / row['ms']:.3f}", f"{100 * rate / matrix_rate:.1f}%", str(row["registers"]),
            str(row["local"]), f"{row['shared'] / 1024:.0f}")


def heading(d, causal):
    """Of one table."""
    return f"d = {d}, {'causal' if causal else 'full'}"


def where(found):
    """On what, and what the matrix rate was."""
    return (f"{found['on']}. {found['dtype']}, N = 4096, a batch of 4, 2048/d heads; the matrix rate, of torch.matmul, "
            f"is {found['matrix_rate']:.0f} TFLOP/s")


def show(found):
    """Print them."""
    for d, causal, rows in tables(found):
        console.rule(f"[bold]{heading(d, causal)}")
        printed = tabled(*HEAD, right=NUMBERS)
        for cells in rows:
            printed.add_row(*cells)
        console.print(printed)
    console.print(f"{where(found)}. Predicted: for {heading(*PREDICTED_FOR)}; × FLASH: the speed beside torch's.",
                  soft_wrap=True)
