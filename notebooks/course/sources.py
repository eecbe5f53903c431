"""The source of a function, as it stands in its file: whole, or from one numbered step to another."""

import inspect
import re


def source(function):
    """Print it."""
    print(inspect.getsource(function), end="")


def depth(line):
    """Blanks before its first letter."""
    return len(line) - len(line.lstrip())


def steps(function, first, last=None):
    """Print the lines from `# (first)` up to the end of step `last` (first, if None).

    ValueError if the function has no such step.
    """
    last = first if last is None else last
    lines = inspect.getsource(function).splitlines()
    numbers = [int(found[1]) if (found := re.search(r"# \((\d+)\)", line)) else None for line in lines]
    missing = [n for n in (first, last) if n not in numbers]
    if missing:
        raise ValueError(f"{function.__name__} has no step {missing[0]}; it has "
                         f"{', '.join(str(n) for n in numbers if n)}")
    start = numbers.index(first)
    stop = len(numbers) - numbers[::-1].index(last)
    while stop < len(lines) and numbers[stop] is None and lines[stop].strip() and depth(lines[stop]) == depth(
            lines[stop - 1]):                                           # the step goes on, without a number
        stop += 1
    print("\n".join(lines[start:stop]))
