"""The functions of `cuda_kernels.ptx`, each with its instruction: a table of docs/tensor_cores.md.

It is read from the source. A module there has two halves, `if SIMULATED: … else: …`: models, and assembly.
"""

import ast
import re
from pathlib import Path

from cuda_kernels import ptx

MODULES = sorted(Path(ptx.__file__).parent.glob("*.py"))
ASSEMBLY = re.compile(r"[a-z]\w*\.[\w.<>:]+(?=[ ;])")               # with a dot, and operands or an end behind it
HEAD = ["function of `ptx`", "instruction", "what it does"]


def halves(file):
    """The definitions under `if SIMULATED` and under its `else`, by name: two dicts, empty if there is no such if."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "SIMULATED":
            return definitions(node.body), definitions(node.orelse)
    return {}, {}


def definitions(body):
    """{name: what defines it}: a function, or for `x, y = f(…), f(…)` the call that makes it."""
    found = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            found |= {name.id: x for name, x in zip(node.targets[0].elts, node.value.elts, strict=True)}
    return found


def instruction(name, device):
    """The first instruction in what defines a name; None if there is none, and the compiler chooses."""
    node, values = device[name], {}
    if isinstance(node, ast.Call):                                  # made by another function, for these arguments
        maker = device[node.func.id]
        values = {parameter.arg: argument.value for parameter, argument in zip(maker.args.args, node.args, strict=True)}
        node = maker
    parts = (device.get(part.id) if isinstance(part, ast.Name) else part for part in ast.walk(node))
    texts = (text_of(part, values) for part in parts if isinstance(part, ast.Constant | ast.JoinedStr))
    return next((found[0] for text in texts if (found := ASSEMBLY.match(text))), None)


def text_of(node, values):
    """A string of the source; what it fills in is its value, if that is known, or its name."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part, values) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        name = ast.unparse(node.value)
        return str(values.get(name, f"<{name}>"))
    return node.value if isinstance(node.value, str) else ""


def rows():
    """(function, instruction, sentence) of everything that `cuda_kernels.ptx` offers, module by module."""
    for file in MODULES:
        models, device = halves(file)
        for name in models:
            if name in ptx.__all__:
                found = instruction(name, device)
                told = " ".join(ast.get_docstring(models[name]).split()).split(". ")[0].strip(".")
                yield f"`{name}`", f"`{found}`" if found else "the compiler's choice", told
