"""A copy of a module with pieces of its text replaced, to plant a fault or to give a wrong answer."""

import inspect
import linecache
import types
from itertools import count

NUMBER = count()


def altered(module, *changes):
    """A new module like this one, but for each (before, after); AssertionError unless `before` stands in it once."""
    text = inspect.getsource(module)
    for before, after in changes:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    name = f"<altered {module.__name__} {next(NUMBER)}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name      # for who asks for its lines
    copy = types.ModuleType(name)
    exec(compile(text, name, "exec"), vars(copy))
    return copy
