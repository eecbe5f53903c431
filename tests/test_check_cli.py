"""`python -m fa_ref check`: exit codes, what it prints, and that a seed line brings a failure back."""

import subprocess
import sys

import pytest

from fa_ref.testing.check import main

pytestmark = pytest.mark.slow
SDPA = ["torch.nn.functional:scaled_dot_product_attention", "--as", "sdpa"]
MINE = """
import fa_ref
import numpy as np
from fa_ref.testing import Supports
from fa_ref.testing.registry import IMPLEMENTATIONS

right = IMPLEMENTATIONS["fa2"].fn
supports = Supports(causal="bottom-right", cross_lengths=True, lse="natural")
def bare(q, k, v, *, scale=None):
    return fa_ref.forward(q, k, v, scale=scale).out

def pretends(q, k, v, **options):
    return bare(q, k, v, **options)

def attention(problem):
    return right(problem)
attention.supports = supports

def top_left(problem):
    triangle = np.tri(problem.q.shape[2], problem.k.shape[2], dtype=bool)
    return right(problem.replace(causal=False, mask=triangle if problem.causal else None))

calls = []
def interrupted(problem):
    calls.append(problem)
    if len(calls) == 25:
        raise KeyboardInterrupt
    return right(problem)
interrupted.supports = supports

class Box:
    attention = staticmethod(attention)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module `mine_for_check` that can be imported, with right and wrong implementations."""
    (tmp_path / "mine_for_check.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    return "mine_for_check"


def run(capsys, *argv):
    """(exit code, what was printed) of main, argparse's own exits included."""
    try:
        code = main(list(argv))
    except SystemExit as stop:
        code = stop.code
    printed = capsys.readouterr()
    return code, printed.out + printed.err


def line_of(printed, name):
    """The row of the table for one property."""
    return next(line for line in printed.splitlines() if line.startswith(name))


# --- torch ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("options", [[], ["--causal", "top-left"], ["--causal", "none", "--no-gradients"],
                                     ["--dtypes", "float64,float16"]])
def test_torchs_attention_passes(capsys, options):
    code, printed = run(capsys, *SDPA, "--examples", "15", *options)
    assert code == 0, printed
    assert "ok" in line_of(printed, "equals_the_oracle") and "15" in line_of(printed, "equals_the_oracle")
    assert "unsupported" in line_of(printed, "any_tiles_give_the_same")
    gradients = "unsupported" if "--no-gradients" in options else "ok"
    assert gradients in line_of(printed, "gradients_equal_the_oracles")


def test_a_failure_is_told_and_its_line_replays_it(capsys):
    wrong = [*SDPA, "--causal", "bottom-right"]
    code, printed = run(capsys, *wrong, "--property", "equals_the_oracle")
    assert code == 1 and "failed" in line_of(printed, "equals_the_oracle")
    assert all(told in printed for told in ("q (1, 1, ", "float", "expected", "times the bound", "causal=True"))
    replay = printed.rpartition('--replay "')[2].partition('"')[0]
    code, printed = run(capsys, *wrong, "--replay", replay)
    command = "python -m fa_ref check torch.nn.functional:scaled_dot_product_attention --as sdpa --causal bottom-right"
    assert code == 1 and f'{command} --property equals_the_oracle --replay "{replay}"' in printed
    assert "unsupported" in line_of(printed, "order_of_keys_is_free")        # the problem is causal
    code, printed = run(capsys, *SDPA, "--replay", "Nq=2 Nk=3 seed=4", "--property", "equals_the_oracle")
    assert code == 0, printed


def test_a_missing_torch_is_one_clear_line():
    without = ("import sys; sys.modules['torch'] = None; from fa_ref.testing.check import main; "
               "sys.exit(main(['fa_ref:forward', '--as', 'sdpa']))")
    done = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True)
    assert done.returncode == 2
    assert len((done.stdout + done.stderr).splitlines()) == 1 and "torch" in done.stdout + done.stderr


# --- ours and yours -------------------------------------------------------------------------------------------

def test_the_command_is_reached_through_the_package():
    done = subprocess.run(
        [sys.executable, "-m", "fa_ref", "check", "fa_ref:forward", "--as", "fa_ref", "--backward", "fa_ref:backward",
         "--examples", "5"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == "" and "ok" in line_of(done.stdout, "gradients_equal_the_oracles")


def test_without_a_backward_no_gradients_are_asked_for(capsys):
    code, printed = run(capsys, "fa_ref:forward", "--as", "fa_ref", "--examples", "3")
    assert code == 0 and "unsupported" in line_of(printed, "gradients_equal_the_oracles")


def test_what_it_cannot_do_is_left_out(capsys, mine):
    code, printed = run(capsys, f"{mine}:bare", "--as", "fa_ref", "--examples", "5")
    assert code == 0 and "needs lse" in line_of(printed, "parts_merge_to_the_whole"), printed
    assert "not asked for: causal, window," in printed and "reverse, lse" in " ".join(printed.split())
    code, printed = run(capsys, f"{mine}:pretends", "--as", "fa_ref", "--property", "equals_the_oracle")
    assert code == 1 and "unexpected keyword" in printed
    code, printed = run(capsys, f"{mine}:pretends", "--as", "fa_ref", "--property", "equals_the_oracle", "--without",
                        "causal,window,bool_mask,float_mask,bias,alibi,softcap,sink,tiles,reverse")
    assert code == 0, printed


def test_a_function_of_problems_brings_its_supports(capsys, mine):
    for name in (f"{mine}:attention", f"{mine}:Box.attention"):
        code, printed = run(capsys, name, "--as", "problem", "--examples", "5")
        assert code == 0 and "unsupported" in line_of(printed, "gradients_equal_the_oracles"), printed
    code, printed = run(capsys, f"{mine}:top_left", "--as", "problem", "--supports", f"{mine}:supports")
    assert code == 1 and "failed" in line_of(printed, "equals_the_oracle"), printed


def test_time_that_runs_out_has_its_own_code(capsys, mine):
    code, printed = run(capsys, f"{mine}:attention", "--as", "problem", "--examples", "1000000", "--time", "0.5")
    assert code == 3 and "out of time" in printed


def test_ctrl_c_shows_what_there_is(capsys, mine):
    code, printed = run(capsys, f"{mine}:interrupted", "--as", "problem", "--examples", "20")
    assert code == 130 and "interrupted after 4 of " in printed
    assert "ok" in line_of(printed, "equals_the_oracle") and "parts_merge_to_the_whole" not in printed


def test_the_seed_decides_the_problems(capsys, mine):
    lines = [run(capsys, f"{mine}:top_left", "--as", "problem", "--supports", f"{mine}:supports", "--seed", s,
                 "--property", "equals_the_oracle")[1] for s in ("5", "5")]
    assert lines[0] == lines[1]


def test_nothing_that_could_be_asked_is_no_success(capsys, mine):
    code, printed = run(capsys, f"{mine}:attention", "--as", "problem", "--property", "any_tiles_give_the_same")
    assert code == 2 and "needs tiles" in printed


# --- wrong usage ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("argv, told", [
    (["nowhere.at_all:function", "--as", "problem"], "the folder of nowhere.py or set PYTHONPATH"),
    (["fa_ref:nothing", "--as", "fa_ref"], "nothing"),
    (["fa_ref.forward", "--as", "fa_ref"], "module:function"),
    (["fa_ref:forward"], "--as"),
    (["fa_ref:forward", "--as", "mystery"], "mystery"),
    (["fa_ref:forward", "--as", "problem"], "supports"),
    (["fa_ref:forward", "--as", "problem", "--supports", "fa_ref:forward"], "supports"),
    (["fa_ref:__version__", "--as", "fa_ref"], "not a function"),
    (["fa_ref:forward", "--as", "fa_ref", "--property", "beauty"], "beauty"),
    (["fa_ref:forward", "--as", "fa_ref", "--dtypes", "int8"], "int8"),
    (["fa_ref:forward", "--as", "fa_ref", "--examples", "0"], "0"),
    (["fa_ref:forward", "--as", "fa_ref", "--time", "-1"], "-1"),
    (["fa_ref:forward", "--as", "fa_ref", "--causal", "top-left"], "top-left"),
    (["fa_ref:forward", "--as", "fa_ref", "--causal", "diagonal"], "diagonal"),
    (["fa_ref:forward", "--as", "fa_ref", "--replay", "Nq=many"], "many"),
    (["fa_ref:forward", "--as", "fa_ref", "--device", "cuda"], "device"),
    (["fa_ref:forward", "--as", "fa_ref", "--seed", "x"], "x"),
    (["fa_ref:forward", "--as", "fa_ref", "--without", "charm"], "charm"),
    (["fa_ref:forward", "--as", "flash_attn", "--device", "cuda:9"], "the device cuda:9, and torch finds none"),
    (["./mine.py:attention", "--as", "fa_ref"], "in its folder it is mine:attention"),
    (["mine.py:attention", "--as", "fa_ref"], "in its folder it is mine:attention"),
])
def test_wrong_usage_is_2_and_names_what_is_wrong(capsys, argv, told):
    code, printed = run(capsys, *argv)
    assert code == 2 and told in printed and "Traceback" not in printed


def test_a_module_that_fails_on_import_is_told(capsys, tmp_path, monkeypatch):
    (tmp_path / "broken_for_check.py").write_text("raise RuntimeError('no GPU here')\n")
    monkeypatch.syspath_prepend(tmp_path)
    code, printed = run(capsys, "broken_for_check:f", "--as", "problem")
    assert code == 2 and "no GPU here" in printed and "broken_for_check" in printed and "PYTHONPATH" not in printed


def test_help_names_the_properties_and_the_exit_codes(capsys):
    code, printed = run(capsys, "--help")
    assert "out of causal, window, bool_mask, float_mask, bias, alibi," in " ".join(printed.split())
    assert code == 0 and "equals_the_oracle" in printed and "3 if the time" in " ".join(printed.split())
