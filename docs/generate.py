"""Write the generated parts of README.md and docs/verification.md, each between its marks.

    python docs/generate.py coverage            README: what each implementation supports (a test compares it)
    python docs/generate.py kit [examples]      verification: every property on every NumPy loop (10,000: 15 minutes)
    python docs/generate.py bench               verification: the ratios of `make bench` on this machine
    python docs/generate.py papers              papers: the papers' figures beside ours, with pictures (3 minutes)
    python docs/generate.py claims              claims: those in circulation, and what is computed for them (10 seconds)
    python docs/generate.py warps               gpu: split-K against split-Q, counted in the simulator
    python docs/generate.py instructions        tensor_cores: the functions of cuda_kernels.ptx, with what they become
    python docs/generate.py planted             verification: faults planted in the kernels, and who caught them
    python docs/generate.py gpu FILE …          verification: what `make gpu` saved, possibly in several runs
    python docs/generate.py dram FILE           verification: what `tests/gpu_dram.py` saved
    python docs/generate.py sanitize FILE       verification: what `make sanitize` saved
    python docs/generate.py performance FILE    performance and README: what `python -m cuda_kernels bench` saved
    python docs/generate.py backward FILE       performance and README: the same with --backward
    python docs/generate.py profile FILE        performance: what python -m cuda_kernels profile saved
    python docs/generate.py tiles FILE          performance: what python -m cuda_kernels tiles saved
    python docs/generate.py ladder FILE         performance: what `python -m cuda_kernels ladder` saved
    python docs/generate.py training FILE       performance: what `python -m cuda_kernels train` saved

`make mutants` writes its own part when called with --write.
"""

import json
import platform
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from pathlib import Path

import claims
import marks
import numpy as np
import performance as bench_tables
import performance_picture
import ptx_functions
import training as training_tables
import training_picture

import cuda_kernels.registered  # noqa: F401  enters the kernels
from cuda_kernels import counts
from cuda_kernels.bench import profile as bench_profile
from cuda_kernels.bench import targets
from cuda_kernels.bench import tiles as bench_tiles
from cuda_kernels.ladder import table as ladder_table
from fa_ref import tables
from fa_ref.testing import running
from fa_ref.testing.properties import PROPERTIES
from fa_ref.testing.registry import IMPLEMENTATIONS, coverage_table

ROOT = Path(__file__).parent.parent
NUMPY = ("standard", "fa1", "fa2", "fa3")
VERIFICATION = ROOT / "docs" / "verification.md"


def coverage():
    """The table of the README."""
    marks.fill(ROOT / "README.md", "coverage", coverage_table())


def kit(examples="10000"):
    """Every property on every NumPy loop: on `examples` problems against the oracle, on a tenth of them else."""
    against_the_oracle = ("equals_the_oracle", "gradients_equal_the_oracles")
    jobs = [(prop, name, int(examples) // (1 if prop in against_the_oracle else 10))
            for prop in PROPERTIES for name in NUMPY]
    rows = {}
    with ProcessPoolExecutor() as pool:
        for (prop, name, _), row in zip(jobs, pool.map(tried, jobs), strict=True):
            rows[prop, name] = row
            print(f"{name:10} {prop:40} {row.status} {row.examples}", flush=True)
    lines = ["| property | " + " | ".join(NUMPY) + " |", "|---|" + "---|" * len(NUMPY)]
    for prop in PROPERTIES:
        cells = [told(rows[prop, name]) for name in NUMPY]
        lines.append(f"| {prop.replace('_', ' ')} | " + " | ".join(cells) + " |")
    total = sum(row.examples for row in rows.values())
    failures = [row for row in rows.values() if row.status == running.FAILED]
    lines.append(f"\n{total:,} problems, {len(failures)} failures ({date.today()}, NumPy {np.__version__}).")
    lines += [f"\n```\n{row.detail}\n```" for row in failures]
    marks.fill(VERIFICATION, "kit", "\n".join(lines))


def tried(job):
    """One property on one implementation (a function of its own, so that a pool can call it)."""
    prop, name, examples = job
    implementation = IMPLEMENTATIONS[name]
    return running.try_property(prop, implementation.fn, implementation.supports, examples=examples, seed=1)


def told(row):
    """A cell of the table."""
    return f"{row.examples:,} ok" if row.status == running.OK else row.status


def bench():
    """What `python -m fa_ref bench` prints."""
    told = printed([sys.executable, "-m", "fa_ref", "bench"])
    marks.fill(VERIFICATION, "bench", f"{date.today()}, {platform.machine()}, Python {platform.python_version()}, "
                                      f"NumPy {np.__version__}:\n\n```text\n{told}\n```")


def papers():
    """Every table of `python -m fa_ref tables`."""
    told = []
    for table in tables.made(tables.TABLES):
        told.append(f"## {table.title}\n\n{table.source}.\n\n" + markdown(
            ["", "paper", "ours", "verdict", "why"], [map(escaped, row[:5]) for row in table.rows], numbers=(1, 2)))
        told.append(table.note)
    marks.fill(ROOT / "docs" / "papers.md", "papers", "\n\n".join(filter(None, told)))
    tables.main(["etap", "--pictures", str(ROOT / "docs" / "papers")])


def escaped(cell):
    """Text that may hold a bar or a star, for a cell of a Markdown table."""
    return cell.replace("|", "\\|").replace("*", "\\*")


def warps():
    """`cuda_kernels.counts` as a table."""
    marks.fill(ROOT / "docs" / "gpu.md", "warps", warps_table())


def warps_table():
    """The same as text."""
    return markdown(counts.HEAD, counts.table(), numbers=range(1, 7))


def instructions():
    """The functions of `cuda_kernels.ptx`."""
    marks.fill(ROOT / "docs" / "tensor_cores.md", "instructions", instructions_table())


def instructions_table():
    """The same as text."""
    return markdown(ptx_functions.HEAD, ptx_functions.rows())


def planted():
    """What `tests/test_planted_faults.py` prints."""
    told = printed([sys.executable, "tests/test_planted_faults.py"])
    marks.fill(VERIFICATION, "planted", f"```text\n{told}\n```")


def printed(command):
    """What a command prints in the folder of the repository."""
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return "\n".join(line.rstrip() for line in run.stdout.splitlines()).strip("\n")


def gpu(*files):
    """Checks, and what each rung costs, from the JSON files of gpu_check.py; the later file counts."""
    runs = [json.loads(Path(file).read_text(encoding="utf-8")) for file in files]
    checks = {name: (name, "ok" if ok else "**failed**", words.replace("\n", " "))
              for run in runs for name, ok, words in run["rows"] if name != "costs" or not ok}
    marks.fill(VERIFICATION, "gpu", on(runs) + markdown(["check", "", "seen"], checks.values()))
    for run in runs:
        if run["costs"]:
            rows = [(kernel, pass_, f"{tile} × {tile}" if tile else "–", heads, f"{ms:.2f}", f"{ratio:.1f} ×",
                     f"{mb:,.0f}") for heads, kernel, tile, pass_, ms, ratio, mb in run["costs"]]
            marks.fill(VERIFICATION, "costs", on([run]) + markdown(
                ["kernel", "pass", "tiles", "heads", "ms", "to torch math", "MB"], rows, numbers=range(3, 7)))


def sanitize(*files):
    """What compute-sanitizer found, from the JSON files of sanitize.py; the later file counts."""
    runs = [json.loads(Path(file).read_text(encoding="utf-8")) for file in files]
    found = {(tool, kernel): (problems, n) for run in runs for tool, kernel, problems, n in run["rows"]}
    tools, kernels = (list(dict.fromkeys(key[n] for key in found)) for n in (0, 1))
    rows = [(kernel, found[tools[0], kernel][0],
             *("did not end" if found[tool, kernel][1] is None else found[tool, kernel][1] for tool in tools))
            for kernel in kernels]
    table = markdown(["kernel", "problems", *tools], rows, numbers=range(1, 5))
    marks.fill(VERIFICATION, "sanitize", on(runs) + table)


def dram(file):
    """Bytes that the hardware counted beside the ledger's, from the JSON file of gpu_dram.py."""
    run = json.loads(Path(file).read_text(encoding="utf-8"))
    rows = [(kernel, heads, f"{N:,}", *(f"{(found[n] + found[n + 1]) / 1e9:.3f}" for n in (0, 2, 4)),
             f"{least / 1e9:.3f}") for kernel, heads, N, *found, least in run["rows"]]
    marks.fill(VERIFICATION, "dram", on([run]) + markdown(
        ["kernel", "heads", "N", "ledger, GB", "asked for, GB", "HBM, GB", "Q, K, V, O once, GB"], rows,
        numbers=range(1, 7)))


def performance(file):
    """The tables and the picture of the benchmark, from the JSON file of `python -m cuda_kernels bench --save`."""
    from fa_ref import drawing  # brings matplotlib

    run = of_pass("forward", file)
    kept("forward", run)
    performance_picture.picture(run, drawing).save(ROOT / "docs" / performance_picture.FILE)
    for name, text in performance_texts(run).items():
        marks.fill(ROOT / "docs" / "performance.md", name, text)
    marks.fill(ROOT / "README.md", "speed", speed_text(run))


def backward(file):
    """The tables of the backward pass, from the JSON file of `python -m cuda_kernels bench --backward --save`."""
    run = of_pass("backward", file)
    kept("backward", run)
    for name, text in backward_texts(run).items():
        marks.fill(ROOT / "docs" / "performance.md", name, text)
    marks.fill(ROOT / "README.md", "backward-speed", speed_text(run))


def tiles(file):
    """The backward pass with other tiles, from the JSON file of `python -m cuda_kernels tiles --save`."""
    run = json.loads(Path(file).read_text(encoding="utf-8"))
    table = markdown(bench_tiles.HEAD, bench_tiles.table(run["rows"]), numbers=bench_tiles.NUMBERS)
    marks.fill(ROOT / "docs" / "performance.md", "backward-tiles", f"{bench_tables.where(run)}\n\n{table}")


def profile(file):
    """What kernels wait for, from the JSON file of `python -m cuda_kernels profile --save`."""
    run = json.loads(Path(file).read_text(encoding="utf-8"))
    table = markdown(bench_profile.HEAD, bench_profile.table(run["rows"]), numbers=bench_profile.NUMBERS)
    marks.fill(ROOT / "docs" / "performance.md", "profile", f"{bench_tables.where(run)}\n\n{table}")


def of_pass(what, file):
    """What the benchmark has saved. ValueError if it has measured the other pass."""
    run = json.loads(Path(file).read_text(encoding="utf-8"))
    if targets.pass_of(run) != what:
        raise ValueError(f"{file} is about the {targets.pass_of(run)} pass, not the {what} pass")
    return run


def kept(name, run):
    """Keep a run beside the pages, for whoever wants to look up a number."""
    path = ROOT / "docs" / "performance" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(run, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def performance_texts(run):
    """{name of the marks: text} of docs/performance.md."""
    where, picture = bench_tables.where(run), f"![{performance_picture.described(run)}]({performance_picture.FILE})"
    parts = {"targets": [where, tabled(bench_tables.judged(run))],
             "ratios": [picture, tabled(bench_tables.ratios(run)), bench_tables.grouped(run)],
             "peers": [tabled(bench_tables.peers(run))], "growth": [tabled(bench_tables.memory(run))],
             "overhead": [tabled(bench_tables.overhead(run))], "resources": [tabled(bench_tables.resources(run))],
             "factor": [tabled(bench_tables.factors(run))]}
    return {name: "\n\n".join(filter(None, texts)) for name, texts in parts.items()}


def backward_texts(run):
    """The same of the section about the backward pass."""
    parts = {"targets": [bench_tables.where(run), tabled(bench_tables.judged(run))],
             "ratios": [tabled(bench_tables.ratios(run)), bench_tables.grouped(run)],
             "deterministic": [tabled(bench_tables.deterministic(run))], "peers": [tabled(bench_tables.peers(run))],
             "overhead": [tabled(bench_tables.overhead(run))], "resources": [tabled(bench_tables.resources(run))]}
    return {f"backward-{name}": "\n\n".join(filter(None, texts)) for name, texts in parts.items()}


def speed_text(run):
    """What the README shows of it."""
    return f"{bench_tables.where(run)}\n\n{tabled(bench_tables.readme(run))}"


def tabled(table):
    """(head, rows, numbers) as Markdown; words if there is no row."""
    return markdown(*table) if table[1] else "Not measured."


def ladder(file):
    """The tables of the ladder, from the JSON file of `python -m cuda_kernels ladder --save`."""
    run = json.loads(Path(file).read_text("utf-8"))
    marks.fill(ROOT / "docs" / "performance.md", "ladder", ladder_text(run))
    kept("ladder", run)                                             # what notebook 13 shows


def ladder_text(run):
    """The same as text."""
    told = [f"{ladder_table.where(run)}."]
    for d, causal, rows in ladder_table.tables(run):
        told.append(f"### {ladder_table.heading(d, causal)}")
        told.append(markdown(ladder_table.HEAD, rows, numbers=ladder_table.NUMBERS))
    return "\n\n".join(told)


def training(file):
    """The tables and the picture of the training, from the JSON file of `python -m cuda_kernels train --save`."""
    from fa_ref import drawing  # brings matplotlib

    run = json.loads(Path(file).read_text(encoding="utf-8"))
    if run["device"] == "cpu":
        raise SystemExit(f"{file} is of a CPU, whose times mean nothing: not written")
    picture = ROOT / "docs" / training_picture.FILE
    picture.parent.mkdir(exist_ok=True)
    training_picture.picture(run, drawing).save(picture)
    for name, text in training_texts(run).items():
        marks.fill(ROOT / "docs" / "performance.md", name, text)


def training_texts(run):
    """{name of the marks: text} of docs/performance.md."""
    picture = f"![{training_picture.described(run)}]({training_picture.FILE})"
    parts = {"training": [training_tables.where(run), tabled(training_tables.judged(run)), picture],
             "training-speed": [tabled(training_tables.speed(run))],
             "training-curves": [training_tables.text(run), tabled(training_tables.curves(run))]}
    return {name: "\n\n".join(texts) for name, texts in parts.items()}


def on(runs):
    """Where and when: a line for each run that differs."""
    return "\n".join(dict.fromkeys(run["on"] for run in runs)) + ":\n\n"


def markdown(head, rows, numbers=()):
    """A table; the columns in `numbers` are set to the right."""
    rule = ["---:" if n in numbers else "---" for n in range(len(head))]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in (head, rule, *rows))


if __name__ == "__main__":
    commands = {"coverage": coverage, "kit": kit, "bench": bench, "papers": papers, "claims": claims.write,
                "warps": warps, "instructions": instructions, "planted": planted, "gpu": gpu, "dram": dram,
                "sanitize": sanitize, "performance": performance, "backward": backward, "profile": profile,
                "tiles": tiles, "ladder": ladder, "training": training}
    if len(sys.argv) < 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]](*sys.argv[2:])
