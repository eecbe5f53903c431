"""What Nsight Compute prints, and the table of it; a script stands for the program."""

import json
import sys

import pytest

from cuda_kernels.bench import ncu, profile

PRINTED = '''==PROF== Connected to process 7 (/usr/bin/python3)
==PROF== Disconnected from process 7
"ID","Process ID","Kernel Name","a.sum","b.avg"
"","","","byte","%"
"0","7","fa2_mma::forward[v1](Array)","1,234,567","0.5"
"1","7","void flash_fwd_kernel<x, y>(params)","8","12.25"
==WARNING== clocks were not locked
'''


@pytest.fixture
def program(tmp_path, monkeypatch):
    """program(text): from now on `ncu` prints this, and keeps the words it was called with in the file `asked`."""
    def make(text):
        script = tmp_path / "ncu"
        script.write_text(f"""#!{sys.executable}
import json, sys
json.dump(sys.argv[1:], open({str(tmp_path / "asked")!r}, "w"))
print({text!r}, end="")
print("told", file=sys.stderr)
""", encoding="utf-8")
        script.chmod(0o755)
        return tmp_path / "asked"

    monkeypatch.setenv("PATH", str(tmp_path))
    return make


def test_every_launch_is_a_row_of_numbers(program):
    asked = program(PRINTED)
    assert ncu.counted(["python", "x.py"], ["a.sum", "b.avg"], "forward|flash") == [
        {"kernel": "fa2_mma::forward[v1](Array)", "a.sum": 1234567.0, "b.avg": 0.5},
        {"kernel": "void flash_fwd_kernel<x, y>(params)", "a.sum": 8.0, "b.avg": 12.25}]
    words = json.loads(asked.read_text(encoding="utf-8"))
    assert words[-2:] == ["python", "x.py"] and "regex:forward|flash" in words and "a.sum,b.avg" in words


@pytest.mark.parametrize("text", ["==ERROR== no permission\n", '"ID","Kernel Name","a.sum"\n"","","byte"\n'])
def test_no_launch_is_an_error_with_what_was_printed(program, text):
    program(text)
    with pytest.raises(RuntimeError, match="counted nothing") as told:
        ncu.counted(["python"], ["a.sum"], "forward")
    assert text in str(told.value) and "told" in str(told.value)


def test_what_cannot_be_counted_is_an_error(program):
    program(PRINTED.replace("12.25", "n/a"))
    with pytest.raises(RuntimeError, match=r"cannot count all of a\.sum, b\.avg here.*n/a"):
        ncu.counted(["python"], ["a.sum", "b.avg"], "forward")


def of_all(number=1.0):
    """What `ncu.counted` would return for the launches of `cases`."""
    return [{"kernel": "flash_bwd" if who == profile.PEER else "fa2_mma"} | dict.fromkeys(profile.METRICS, number)
            for _, _, who in profile.cases()]


def test_the_launches_are_those_of_the_table(monkeypatch):
    asked = []
    monkeypatch.setattr(ncu, "counted", lambda *given: asked.append(given) or of_all(3.0))
    rows = profile.measured()
    assert [(row["d"], row["pass"], row["who"]) for row in rows] == profile.cases() and len(rows) == 12
    assert asked[0][0][-2:] == ["profile", "--launch"]
    lines = list(profile.table(rows))
    assert {len(line) for line in lines} == {len(profile.HEAD)}
    assert lines[1] == ("64", "forward", "torch, FLASH", "3", "3", "3", "3", "3.0", "3.00", "3.00", "3.00", "3.00")


def test_other_launches_are_an_error(monkeypatch):
    for wrong in (of_all()[:-1], of_all()[::-1]):
        monkeypatch.setattr(ncu, "counted", lambda *given, wrong=wrong: wrong)
        with pytest.raises(RuntimeError, match="has seen other launches"):
            profile.measured()


def test_what_the_command_says_without_a_gpu_or_counters(monkeypatch, tmp_path, capsys):
    assert profile.main([]) == 2 and "profile measures kernels on a GPU, and the" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        profile.main(["--save", str(tmp_path / "no" / "profile.json")])
    assert "there is no folder" in capsys.readouterr().err
    monkeypatch.setattr(profile, "unable", lambda command: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert profile.main([]) == 2 and "there is no program ncu" in capsys.readouterr().out
    monkeypatch.setattr(ncu, "counted", lambda *given: of_all()[1:])
    assert profile.main([]) == 2 and "has seen other launches" in capsys.readouterr().out


def test_what_is_measured_is_kept(monkeypatch, tmp_path, capsys):
    from cuda_kernels.bench import measure

    monkeypatch.setattr(profile, "unable", lambda command: None)
    monkeypatch.setattr(measure, "machine", lambda: {"card": "a card"})
    monkeypatch.setattr(ncu, "counted", lambda *given: of_all())
    assert profile.main(["--save", str(tmp_path / "profile.json")]) == 0 and "FLASH" in capsys.readouterr().out
    kept = json.loads((tmp_path / "profile.json").read_text(encoding="utf-8"))
    assert kept["on"] == {"card": "a card"} and len(kept["rows"]) == len(profile.cases())
