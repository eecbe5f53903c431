"""`python -m cuda_kernels debug`: where it stops, what it prints, and when it says no.

What a debugger shows there is in docs/debugging_kernels.md, whose sessions tests/test_docs.py repeats.
"""

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cuda_kernels
from cuda_kernels import debug

ROOT = Path(__file__).parent.parent
simulated = pytest.mark.skipif(not cuda_kernels.SIMULATED, reason="about the simulator; kernels run on a GPU here")
kernels = pytest.mark.parametrize("kernel", ["standard", "fa1", "fa2"])


def two_results(told):
    """The two matrices that it prints at its end: O, or dQ, and that of plain softmax."""
    ours, plain = (re.findall(r"-?\d+\.\d+", half) for half in re.split("and (?:of )?plain softmax", told))
    return np.array(ours, float), np.array(plain, float)


@kernels
@pytest.mark.parametrize("threads", ["1", "8"])
def test_it_runs_to_its_end(kernel, threads, capsys):
    assert debug.main([kernel, "--threads", threads, "--run"]) == 0
    ours, plain = two_results(capsys.readouterr().out)
    assert len(ours) == 8 and np.allclose(ours, plain, rtol=0, atol=1e-7)


@kernels
def test_it_stops_at_barriers_from_the_one_before_step_4_on(kernel):
    core = cuda_kernels.KERNELS[kernel]
    lines = Path(core.__file__).read_text(encoding="utf-8").split("\n")
    stops = debug.barriers(core.make_forward, 4)
    step = next(n for n, line in enumerate(lines, 1) if "# (4) " in line)
    ahead = [n for n, line in enumerate(lines[:step], 1) if "cuda.syncthreads()" in line]
    assert stops[0] == ahead[-1] and len(stops) >= 2
    assert all("cuda.syncthreads()" in lines[n - 1] for n in stops)


@pytest.mark.parametrize("threads", [[], ["--threads", "64"]])
def test_a_warp_runs_to_its_end(threads, capsys):
    """float16: three digits of the answer; 2 of 8 channels are shown."""
    assert debug.main(["fa2_mma", "--run", *threads]) == 0
    ours, plain = two_results(capsys.readouterr().out)
    assert len(ours) == 8 and np.allclose(ours, plain, rtol=1e-3, atol=0)


def test_a_warp_stops_where_its_block_or_its_lanes_meet():
    core = cuda_kernels.KERNELS["fa2_mma"]
    lines = Path(core.__file__).read_text(encoding="utf-8").split("\n")
    stops = [lines[n - 1].split("#")[0].strip() for n in debug.barriers(core.make_forward, 4)]
    assert stops == ["cuda.syncthreads()"] * 2 + ["cuda.syncwarp(ALL)"] * 2     # one of the first for wide heads only


@pytest.mark.parametrize("kernel, close", [("fa2", {"rtol": 0, "atol": 1e-7}), ("fa2_mma", {"rtol": 5e-3, "atol": 0})])
def test_the_backward_pass_runs_to_its_end(kernel, close, capsys):
    assert debug.main([kernel, "--backward", "--run"]) == 0
    ours, plain = two_results(capsys.readouterr().out)
    assert len(ours) == 8 and np.allclose(ours, plain, **close) and abs(plain).max() > 1


@pytest.mark.parametrize("kernel", debug.BACKWARD)
def test_the_backward_pass_stops_when_tiles_of_queries_are_there(kernel):
    stop = debug.BACKWARD[kernel]
    lines = Path(inspect.getsourcefile(inspect.unwrap(stop.maker))).read_text(encoding="utf-8").split("\n")
    stops = [lines[n - 1].split("#") for n in debug.barriers(stop.maker, stop.step)]
    assert "Qi, dOi" in stops[0][1] and len(stops) >= 3 and all("cuda.syncthreads()" in stop[0] for stop in stops)


@pytest.mark.parametrize("asked, said", [
    (["fa1", "--backward"], "--backward is offered for fa2 and fa2_mma, got fa1"),
    (["fa2_mma", "--threads", "8"], "--threads: threads must be a multiple of 32 .* got 8"),
    (["fa2", "--threads", "0"], "--threads: threads must be at least 1, got 0"),
])
def test_what_cannot_be_is_refused_in_a_line(asked, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        debug.main([*asked, "--run"])
    assert re.search(said, capsys.readouterr().err)


def test_on_a_gpu_pdb_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(cuda_kernels, "SIMULATED", False)
    with pytest.raises(SystemExit) as end:
        debug.main([])
    assert end.value.code == 2 and "set FA_REF_CUDA=sim, or give --run" in capsys.readouterr().err


@simulated
def test_the_configuration_of_vs_code_runs_to_its_end():
    configurations = json.loads((ROOT / ".vscode/launch.json").read_text())["configurations"]
    [chosen] = [c for c in configurations if c.get("module") == "cuda_kernels" and c["args"][0] == "debug"]
    environment = {name: x for name, x in os.environ.items() if name != "FA_REF_CUDA"} | chosen["env"]
    run = subprocess.run([sys.executable, "-m", chosen["module"], *chosen["args"]], cwd=ROOT, env=environment,
                         stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", timeout=120)
    assert run.returncode == 0, run.stderr
    assert np.allclose(*two_results(run.stdout), rtol=0, atol=1e-7)
