"""What `python -m cuda_kernels bench --save FILE` measured, as tables for docs/generate.py.

A table is (head, rows, which columns are numbers). All of them are functions of what the file holds.
"""

from cuda_kernels.bench import targets

OURS = targets.OURS
NAMES = {"math": "torch, math", "efficient": "torch, efficient", "flash": "torch, FLASH", "cudnn": "torch, cuDNN"}
README_LENGTHS = 1024, 4096, 16384
ONE_N = 4096                                                        # of the table of all peers


def where(record):
    """The card, the day and the versions in a line."""
    on = record["on"]
    return (f"{on['card']}, {on['date']}; driver {on['driver']}, torch {on['torch']}, numba-cuda {on['numba-cuda']}; "
            f"bfloat16, {targets.pass_of(record)}, random normal input.")


def ratios(record, lengths=None, ours=OURS, peer=targets.PEER):
    """Speed to torch FLASH, or to another peer: a row for each length, a column for each head dim, full and causal."""
    cases = targets.by_case(record["cells"])
    plain = [case for case in cases if not case.grouped]
    columns = sorted({(case.d, case.causal) for case in plain})
    rows = []
    for N in sorted({case.N for case in plain}):
        if lengths is None or N in lengths:
            found = {(case.d, case.causal): targets.speed(cases[case], ours, peer) for case in plain if case.N == N}
            rows.append((f"{N:,}", *(times(found.get(column)) for column in columns)))
    head = ["N", *(f"d = {d}, {'causal' if causal else 'full'}" for d, causal in columns)]
    return head, rows, range(len(head))


def deterministic(record):
    """Speed of the backward pass without atomics to the one with them, in the same form."""
    return ratios(record, None, OURS + targets.DETERMINISTIC, OURS)


def grouped(record):
    """The same for grouped heads, in a line of words; empty if there are none."""
    cases = targets.by_case(record["cells"])
    told = [f"{'causal' if case.causal else 'full'} {times(targets.speed(row))}" for case, row in cases.items()
            if case.grouped]
    case = next((case for case in cases if case.grouped), None)
    return case and (f"With {case.H} query heads on {case.Hkv} key/value heads, d = {case.d}, N = {case.N:,}, a batch "
                     f"of {case.B}: {', '.join(told)}.")


def peers(record, N=ONE_N):
    """Time and memory of everybody at one length, with the reason where there is none."""
    rows = []
    for case, row in targets.by_case(record["cells"]).items():
        if case.N != N or case.grouped:
            continue
        for name, cell in row.items():
            found = numbers(case, cell, targets.pass_of(record))
            rows.append((f"{case.d}, {case.kind}", NAMES.get(name, f"`{name}`"), *found))
    return ["d", "", "ms", "TFLOP/s", "beyond the inputs, MiB", "error, of what is allowed"], rows, range(2, 6)


def numbers(case, cell, what):
    """The columns of one peer."""
    if "ms" not in cell:
        return short(cell["why"]), "–", "–", "–"
    return (f"{cell['ms']:.3f}", f"{targets.tera(case, cell['ms'], what):.0f}", f"{cell['mb']:,.0f}",
            f"{cell['error'] / cell['allowed']:.2f}")


def short(why, most=60):
    """A reason that fits into a cell."""
    why = why.replace("|", "/")
    return why if len(why) <= most else why[:most].rsplit(" ", 1)[0] + " …"


def factors(record):
    """FlashAttention-2 to FlashAttention-1, both on tensor cores; no rows if the latter was not measured."""
    found = targets.factors(targets.by_case(record["cells"]))
    lengths = sorted({N for _, _, speeds in found for N in speeds})
    rows = [(f"{d}, {kind}", *(times(speeds.get(N)) for N in lengths)) for d, kind, speeds in found]
    return ["d", *(f"N = {N:,}" for N in lengths)], rows, range(1, len(lengths) + 1)


def memory(record):
    """Memory beyond the inputs by length, for one batch entry."""
    names = [name for name in (OURS, "flash", "math") if any(name in row for row in record["memory"])]
    rows = [(f"{row['N']:,}", *(f"{row[name]:,.1f}" if isinstance(row.get(name), float) else "–" for name in names))
            for row in record["memory"]]
    return ["N", *(f"{NAMES.get(name, f'`{name}`')}, MiB" for name in names)], rows, range(len(names) + 1)


def overhead(record):
    """Microseconds of the host for each call."""
    return ["", "µs"], [(name if name.startswith("torch") else f"`{name}`", f"{us:.1f}")
                        for name, us in record["overhead"].items()], (1,)


def resources(record):
    """What a block takes."""
    head = ["kernel", "d", "threads", "registers", "local, bytes", "shared, bytes", "blocks at once"]
    rows = [(f"`{row['kernel']}`", *(f"{row[name]:,}" for name in
                                     ("d", "threads", "registers", "local", "shared", "blocks")))
            for row in record["resources"]]
    return head, rows, range(1, 7)


def judged(record):
    """The targets."""
    rows = [(target.what, target.found, target.verdict) for target in targets.judged(record)]
    return ["target", "found", ""], rows, ()


def readme(record):
    """A few of the ratios."""
    return ratios(record, README_LENGTHS)


def times(x):
    """A ratio in a cell."""
    return "–" if x is None else f"{x:.2f} ×"
