"""Small faults for Python source: every way to change one expression of a module.

Operators and comparisons are exchanged, bounds and constants moved by one, conditions negated, max and min (any and
all, zeros and ones …) confused; keywords, transposes and casts are left out. Messages, imports and annotations stay.
"""

import ast
import copy
from types import CodeType
from typing import NamedTuple

OPERATORS = {
    ast.Add: [ast.Sub], ast.Sub: [ast.Add], ast.Mult: [ast.Div], ast.Div: [ast.Mult], ast.FloorDiv: [ast.Mult],
    ast.Mod: [ast.FloorDiv], ast.MatMult: [ast.Mult], ast.BitAnd: [ast.BitOr], ast.BitOr: [ast.BitAnd],
    ast.And: [ast.Or], ast.Or: [ast.And], ast.Lt: [ast.LtE, ast.GtE], ast.LtE: [ast.Lt, ast.Gt],
    ast.Gt: [ast.GtE, ast.LtE], ast.GtE: [ast.Gt, ast.Lt], ast.Eq: [ast.NotEq], ast.NotEq: [ast.Eq],
    ast.Is: [ast.IsNot], ast.IsNot: [ast.Is], ast.In: [ast.NotIn], ast.NotIn: [ast.In]}
NAMES = {"max": "min", "min": "max", "maximum": "minimum", "minimum": "maximum", "any": "all", "all": "any",
         "sum": "max", "zeros": "ones", "zeros_like": "ones_like", "ones_like": "zeros_like",
         "EMPTY": "PARTIAL", "PARTIAL": "FULL", "FULL": "PARTIAL"}
LEFT_ALONE = ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom


class Mutant(NamedTuple):
    """A module with one change ("before → after") in line `number`; `line` is its text without the comment."""

    module: str
    number: int
    line: str
    change: str
    code: CodeType

    @property
    def key(self):
        """What names the mutant when lines have moved."""
        return self.module, self.line, self.change


def mutants(path):
    """All mutants of the module in this file, from its first line to its last."""
    source = path.read_text()
    tree, lines, found = ast.parse(source), source.splitlines(), []
    for node, field, put in sites(tree):
        for new in changes(node, field):
            change = f"{ast.unparse(node)} → {ast.unparse(new) if new else '(left out)'}"
            put([ast.copy_location(new, node)] if new else [])
            code = compile(ast.fix_missing_locations(tree), path, "exec")
            put([node])
            line = lines[node.lineno - 1].split("  #")[0].strip()
            found.append(Mutant(path.stem, node.lineno, line, change, code))
    return found


def sites(parent):
    """Triples: a node below the parent, the field that holds it, a function that puts a list of nodes in its place."""
    for field, value in ast.iter_fields(parent):
        for n, node in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(node, ast.AST) or isinstance(node, LEFT_ALONE) or field in ("annotation", "returns"):
                continue

            def put(nodes, field=field, value=value, n=n):
                several = isinstance(value, list)
                setattr(parent, field, [*value[:n], *nodes, *value[n + 1:]] if several else nodes[0])

            yield node, field, put
            yield from sites(node)


def changes(node, field):
    """What may stand in place of the node; None leaves it out."""
    if field in ("test", "ifs") and not isinstance(node, ast.Compare):
        yield ast.UnaryOp(ast.Not(), node)
    match node:
        case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.BoolOp(op=op):
            for new in OPERATORS.get(type(op), ()):
                yield but(node, op=new())
        case ast.Compare(ops=ops):
            for n, op in enumerate(ops):
                for new in OPERATORS[type(op)]:
                    yield but(node, ops=[*ops[:n], new(), *ops[n + 1:]])
        case ast.UnaryOp(operand=operand):
            yield operand
            if ast.unparse(node) == "-np.inf":
                yield ast.Constant(0)
        case ast.Constant(value=bool(x)):
            yield ast.Constant(not x)
        case ast.Constant(value=int(x)):
            yield ast.Constant(x + 1)
            if x == 1:
                yield ast.Constant(0)
            if x == 0 and field == "args":
                yield parsed("-np.inf")
        case ast.Name(id=name, ctx=ast.Load()) if name in NAMES:
            yield but(node, id=NAMES[name])
        case ast.Attribute(attr=name) if name in NAMES:
            yield but(node, attr=NAMES[name])
        case ast.Attribute(value=value, attr="T"):
            yield value
        case ast.keyword(arg=str()):
            yield None
        case ast.Slice(lower=lower, upper=upper):
            yield from (but(node, lower=new) for new in beside(lower))
            yield from (but(node, upper=new) for new in beside(upper))
        case ast.Call(func=ast.Name(id="slice" | "range"), args=args):
            for n, bound in enumerate(args):
                yield from (but(node, args=[*args[:n], new, *args[n + 1:]]) for new in beside(bound))
        case ast.Call(func=ast.Attribute(value=x, attr="astype")) | ast.Call(func=ast.Name(id="rounded"), args=[x, _]):
            yield x


def but(node, **fields):
    """A copy of the node with these fields changed."""
    new = copy.copy(node)
    vars(new).update(fields)
    return new


def beside(bound):
    """One more and one less than the bound of a slice or range (constants are changed on their own)."""
    if bound is not None and not isinstance(bound, ast.Constant):
        yield from (parsed(f"{ast.unparse(bound)} {sign} 1") for sign in "+-")


def parsed(text):
    """The expression that the text stands for."""
    return ast.parse(text, mode="eval").body
