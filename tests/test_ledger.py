"""What the ledger counts, by which rule, and what it refuses. (Whole runs against formulas: test_costs.py.)"""

import math
import pickle

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_ref import bench, countable, fa1, fa2
from fa_ref.ledger import Access, Ledger, OnChipFullError
from fa_ref.scores import Rule

NUMBERS = np.arange(1, 7, dtype=np.float32).reshape(2, 3)


def on_chip(use):
    """Do use(X) with NUMBERS on chip; return the ledger and what came out."""
    with Ledger() as led:
        result = use(led.hbm(NUMBERS, "X")[:])
    return led, result


# --- reads and writes -----------------------------------------------------------------------------------------

@given(st.integers(-9, 9) | st.none(), st.integers(-9, 9) | st.none(), st.integers(-4, 3))
def test_a_subscript_reads_and_writes_what_it_names(start, stop, row):
    cells = np.arange(20.0).reshape(4, 5)
    with Ledger(log=True) as led:
        X = led.hbm(cells, "X")
        for where in (slice(start, stop), (row, slice(start, stop)), row, (), (slice(None), row)):
            tile = X[where]
            np.testing.assert_array_equal(np.asarray(tile), cells[where])
            X[where] = tile
            load, store = led.log[-2:]
            assert load == Access(led.arrays[0], "load", load.where) and store == load._replace(action="store")
            box = cells[tuple(slice(*pair) for pair in load.where)]
            assert len(load.where) == 2 and all(a <= b for a, b in load.where)
            np.testing.assert_array_equal(box.ravel(), cells[where].ravel())
    sizes = sum(math.prod(b - a for a, b in access.where) for access in led.log)
    assert led.total("reads") + led.total("writes") == sizes
    assert led.total("read_bytes") == 8 * led.total("reads") and led.total("fresh_reads") == 0


def test_fresh_reads_are_those_of_cells_that_nobody_wrote():
    with Ledger() as led:
        X = led.hbm(NUMBERS)
        Y = np.zeros_like(X, shape=(4,))
        Y[1:3] = 7
        Y[:] += 1                                                   # a read and a write
        Y[:]
    given_, made = led.arrays
    assert (made.name, made.shape, made.dtype) == (None, (4,), np.float32)
    assert (made.reads, made.fresh_reads, made.writes) == (8, 2, 6) and given_.reads == 0
    assert np.asarray(Y).tolist() == [1, 8, 8, 1]


def test_what_nobody_wrote_is_not_a_number():
    with Ledger() as led:
        X = led.hbm(NUMBERS)
        empty, whole = np.empty_like(X), np.empty_like(X, dtype=int)
    assert np.isnan(np.asarray(empty)).all() and np.asarray(whole).shape == (2, 3)


def test_a_look_counts_nothing_and_changes_nothing():
    with Ledger() as led:
        X = led.hbm(NUMBERS)
        np.testing.assert_array_equal(X.look(), NUMBERS)
        with pytest.raises(ValueError, match="read-only"):
            X.look()[0] = 1
    assert led.total("reads") == 0


def test_a_tile_is_a_copy_and_the_callers_array_stays_as_it_was():
    mine = NUMBERS.copy()
    with Ledger() as led:
        X = led.hbm(mine)
        tile = X[:1]
        tile[:] = 0
        X[1:] = 9
        np.testing.assert_array_equal(np.asarray(X[:]), [[1, 2, 3], [9, 9, 9]])
    np.testing.assert_array_equal(mine, NUMBERS)


def test_a_number_from_memory_may_say_where_to_load():
    """A table of pages, say."""
    with Ledger(log=True) as led:
        X, pages = led.hbm(NUMBERS), led.hbm(np.array([1, 0]))
        page = pages[0]
        X[page], X[page:page + 1]
    assert [access.where for access in led.log[1:]] == [((1, 2), (0, 3))] * 2
    assert led.other_flops == 0


def test_without_log_there_is_no_log():
    assert on_chip(lambda X: X)[0].log is None


NOT_A_TILE = r"whole numbers and slices of step 1|X .* has 2 axes"


@pytest.mark.parametrize("where", [
    slice(None, None, 2), slice(None, None, -1), [0, 1], np.array([0]), np.array([True, False]), True, None, (..., ...),
    0.0, (0, None), "a"])
def test_other_subscripts_are_refused(where):
    with Ledger() as led:
        X = led.hbm(NUMBERS, "X")
        with pytest.raises((TypeError, IndexError), match=NOT_A_TILE):
            X[where]
        with pytest.raises((TypeError, IndexError), match=NOT_A_TILE):
            X[where] = 0
        for outside in (2, -3, (0, 3), (0, 0, 0)):
            with pytest.raises(IndexError, match=r"array X \(2, 3\)"):
                X[outside]
    assert led.total("reads") == led.total("writes") == 0


@pytest.mark.parametrize("use", [
    lambda X: X + 1, lambda X: np.exp(X), lambda X: X @ np.ones((2, 2)), lambda X: np.ones((2, 2)) @ X,
    lambda X: X.T, lambda X: X.sum(), lambda X: X.astype(np.float32), lambda X: np.sum(X), lambda X: np.asarray(X),
    lambda X: np.where(True, X, 0), lambda X: X == 1, bool, list, lambda X: 1 in X,
    lambda X: X[:] + X, lambda X: X[:] @ X, lambda X: np.maximum(X[:], X), lambda X: np.where(True, X[:], X),
    lambda X: np.add(X[:], 1, out=X), lambda X: np.concatenate([X[:], X]), lambda X: X.__setitem__(slice(None), X),
    lambda X: np.copyto(X[:], X)])
def test_an_array_in_memory_cannot_be_used_without_a_load(use):
    with Ledger() as led:
        X = led.hbm(np.ones((2, 2)), "X")
        with pytest.raises(TypeError, match=r"array X \(2, 2\) lives in HBM"):
            use(X)


# --- operations -----------------------------------------------------------------------------------------------

COUNTED = {                                                         # X is (2, 3): (matmul_flops, other_flops, exps)
    "elements of the result": [
        ((0, 6, 0), lambda X: X + 1), ((0, 6, 0), lambda X: 1 - X), ((0, 6, 0), lambda X: -X), ((0, 6, 0), abs),
        ((0, 6, 0), lambda X: X**2), ((0, 6, 0), lambda X: np.log(X)), ((0, 6, 0), lambda X: np.tanh(X)),
        ((0, 6, 0), lambda X: np.maximum(X, 0)), ((0, 6, 0), lambda X: np.clip(X, 0, 1)),
        ((0, 6, 0), lambda X: np.ones((2, 3)) * X), ((0, 12, 0), lambda X: X[:, :, None] * [1.0, 2.0]),
        ((0, 12, 0), lambda X: X * X + X), ((0, 6, 0), lambda X: np.float32(2) * X)],
    "exps": [
        ((0, 0, 6), lambda X: np.exp(X)), ((0, 0, 6), lambda X: np.exp2(X)), ((0, 0, 3), lambda X: np.expm1(X[0]))],
    "elements that go into a reduction": [
        ((0, 6, 0), lambda X: X.sum()), ((0, 6, 0), lambda X: X.sum(axis=1)), ((0, 6, 0), lambda X: np.sum(X, axis=0)),
        ((0, 6, 0), lambda X: X.max(axis=1, initial=-np.inf)), ((0, 6, 0), lambda X: np.max(X)),
        ((0, 6, 0), lambda X: np.add.reduce(X)), ((0, 6, 0), lambda X: X.prod()),
        ((0, 6 + 3, 0), lambda X: X.mean(axis=0)), ((0, 0, 0), lambda X: X[:, :0].max(axis=1, initial=-np.inf))],
    "2·m·n·k": [
        ((24, 0, 0), lambda X: X @ X.T), ((36, 0, 0), lambda X: np.matmul(X.T, X)),
        ((0, 0, 0), lambda X: X[:, :0] @ X[:0]), ((24, 0, 0), lambda X: np.ones((2, 2), np.float32) @ X)],
    "nothing": [
        ((0, 0, 0), lambda X: X == 1), ((0, 0, 0), lambda X: np.isfinite(X)), ((0, 0, 0), lambda X: X.argmax(axis=1)),
        ((0, 0, 0), lambda X: np.where(X > 2, X, 0)), ((0, 0, 0), lambda X: X.astype(np.float16)),
        ((0, 0, 0), lambda X: X[:, None].T.copy().reshape(-1)), ((0, 0, 0), lambda X: np.concatenate([X, X])),
        ((0, 0, 0), lambda X: X.astype(int) * 2 + 1), ((0, 0, 0), lambda X: (X > 2).sum()), ((0, 0, 0), repr),
        ((0, 0, 0), lambda X: f"{X} {X[0, 0]:.2f}"), ((0, 0, 0), lambda X: (X > 2).any() and not (X > 2).all())],
    "single numbers": [
        ((0, 1, 0), lambda X: X[0, 0] * 2), ((0, 2, 0), lambda X: X[0, 0] * 2 + X[1, 1]),
        ((0, 3, 0), lambda X: sum(X[0])), ((0, 6 + 1, 0), lambda X: X.sum() / 2),
        ((0, 0, 1), lambda X: np.exp(X[0, 0])), ((0, 4, 0), lambda X: sum(row[0] + 1 for row in X))],
    "in place": [
        ((0, 6, 0), lambda X: X.__imul__(2)), ((0, 6, 0), lambda X: np.add(X, 1, out=X)),
        ((0, 3, 0), lambda X: X[0].__iadd__(1)), ((0, 6, 0), lambda X: np.add(X, 1, out=np.ones((2, 3)))),
        ((0, 12, 0), lambda X: np.add(1, X, out=np.ones((2, 3))) * 2)],
}
OPERATIONS = [pytest.param(counts, use, id=f"{rule} {n}") for rule, cases in COUNTED.items()
              for n, (counts, use) in enumerate(cases)]


@pytest.mark.parametrize(("counts", "use"), OPERATIONS)
def test_an_operation_is_counted_by_the_rules(counts, use):
    led, result = on_chip(use)
    assert (led.matmul_flops, led.other_flops, led.exps) == counts
    plain = use(NUMBERS.copy())                                     # and gives what NumPy gives
    if isinstance(plain, np.ndarray | np.generic):
        assert result.dtype == plain.dtype
        np.testing.assert_array_equal(np.asarray(result), plain)
    else:
        assert str(result) == str(plain)


ARGUMENTS = {                                                       # after X, or instead of it
    np.where: lambda X: (X > 2, X, 0), np.copyto: lambda X: (X, 1), np.full_like: lambda X: (X, 7),
    np.concatenate: lambda X: ([X, X],), np.stack: lambda X: ([X, X],), np.reshape: lambda X: (X, 6),
    np.swapaxes: lambda X: (X, 0, 1), np.expand_dims: lambda X: (X, 1), np.broadcast_to: lambda X: (X, (4, 2, 3)),
    np.clip: lambda X: (X, 2, 3)}


@pytest.mark.parametrize("name", """
    sum prod mean max min amax amin clip shape ndim size where any all copyto zeros_like ones_like full_like empty_like
    concatenate stack reshape transpose swapaxes squeeze expand_dims broadcast_to""".split())
def test_functions_that_are_offered_work(name):
    function = getattr(np, name)

    def use(X):
        X[0, 0] = 0                                                 # so that any and all differ
        result = function(*ARGUMENTS.get(function, lambda X: (X,))(X))
        return None if function is np.empty_like else result

    led, result = on_chip(use)
    assert led.other_flops == (0 if function in countable.FREE else 7 if name == "mean" else 6)
    np.testing.assert_array_equal(np.asarray(result), use(NUMBERS.copy()))


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2,
                                   ml_dtypes.float8_e4m3fn])
def test_every_floating_dtype_counts(dtype):
    led, _ = on_chip(lambda X: X.astype(dtype) + X.astype(dtype))
    assert led.other_flops == 6


REFUSED = {
    "dot": lambda X: X.dot(X.T), "dot ": lambda X: np.dot(X, X.T), "einsum": lambda X: np.einsum("ij,ij", X, X),
    "inner": lambda X: np.inner(X, X), "outer": lambda X: np.outer(X, X), "tensordot": lambda X: np.tensordot(X, X),
    "vdot": lambda X: np.vdot(X, X), "vecdot": lambda X: np.vecdot(X, X), "shapes": lambda X: X @ X[0],
    "norm": lambda X: np.linalg.norm(X), "cumsum": lambda X: np.cumsum(X), "add.accumulate": lambda X: X.cumsum(),
    "add.at": lambda X: np.add.at(X, 0, 1), "multiply.outer": lambda X: np.multiply.outer(X, X),
    "divmod": lambda X: divmod(X, 2), "modf": lambda X: np.modf(X), "logaddexp": lambda X: np.logaddexp(X, X),
    "where=": lambda X: np.add(X, X, where=X > 2), "where= ": lambda X: X.sum(where=X > 2),
    "trace": lambda X: X.trace(), "take": lambda X: X.take(0), "flat": lambda X: X.flat[0],
    "__float__": lambda X: math.exp(X[0, 0]), "__int__": lambda X: int(X[0, 0]),
    "complex64": lambda X: X * 1j, "object": lambda X: X.astype(object) + 1,
    "interp": lambda X: np.interp(X, X[0], X[0]),
    "vectorized": lambda X: np.frompyfunc(lambda x: 2 * x, 1, 1)(X), "nan_to_num": lambda X: np.nan_to_num(X)}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_rule_is_refused_by_name(name):
    with pytest.raises(TypeError, match=f"{name.strip()}.*counted"):
        on_chip(REFUSED[name])


def test_numbers_leave_only_where_one_says_so():
    led, plain = on_chip(lambda X: (np.asarray(X), X[0, 0].item(), X.tolist(), X[0, 0].astype(int).item()))
    assert [type(x) for x in plain] == [np.ndarray, float, list, int] and led.other_flops == 0


def test_in_place_keeps_the_array():
    def use(X):
        before = X
        X += 1
        return X is before
    assert on_chip(use)[1]


def test_arrays_that_a_core_makes_are_on_chip_too():
    def core(X):
        acc, m, spare = np.zeros((2, 3)), np.full(2, -np.inf), np.empty((2, 3))
        spare[:] = X[:]
        return (acc + 1) * spare, np.exp(m)                         # acc + 1 and exp(m) meet nothing that was loaded

    with Ledger() as led:
        X = led.hbm(NUMBERS)
        core(X)
    assert (led.other_flops, led.exps) == (12, 2)


def test_numpy_is_left_as_it_was():
    makers = np.zeros, np.full, np.empty
    with pytest.raises(ZeroDivisionError), Ledger() as led:
        assert np.zeros is not makers[0]
        assert type((lambda: np.zeros(3))()) is np.ndarray          # a function without metered arrays sees no change
        X = led.hbm(NUMBERS)
        assert type(np.zeros_like(NUMBERS)) is np.ndarray and type(np.zeros(3)) is type(X[:])
        raise ZeroDivisionError
    assert (np.zeros, np.full, np.empty) == makers
    with Ledger():
        pass


# --- on chip --------------------------------------------------------------------------------------------------

def peak(core, **options):
    """The ledger of a core that is given a (4, 8) float32 array in memory: 128 bytes, 32 for each row."""
    with Ledger(**options) as led:
        core(led.hbm(np.zeros((4, 8), np.float32), "X"))
    return led


def test_the_peak_is_the_sum_of_the_names():
    def core(X):
        a = X[:2]                                                   # 64
        b = X[2:]                                                   # 128
        c = a + b                                                   # 192
        X[:2] = c
        del a, b, c
        d = X[:1]                                                   # 32
        X[:1] = d

    led = peak(core)
    assert led.peak_onchip_bytes == 192 and led.peak_tiles == {"a": 64, "b": 64, "c": 64}


def test_what_is_made_and_gone_between_two_accesses_is_not_seen():
    def core(X):
        a = X[:1]
        b = np.zeros(1000) + a.sum()
        del b
        X[:1] = a
    assert peak(core).peak_onchip_bytes == 32


def test_views_and_second_names_count_once():
    def core(X):
        a = X[:]
        b = a
        c = a[:2].T
        d = c.T + b[:2]                                             # 64
        X[:2] = d
    led = peak(core)
    assert led.peak_tiles == {"a = b = c": 128, "d": 64}


def test_a_loaded_tile_takes_the_place_of_what_its_name_held():
    def core(X):
        for i in range(4):
            a = X[i:i + 1] * 2                                      # 32, not 64
            b, c = X[i], X[i].astype(np.float64)                    # 32 and 64
            X[i] = a[0] + b + c
    assert peak(core).peak_onchip_bytes == 32 + 32 + 64


def test_a_tile_without_a_name_counts_while_it_is_loaded():
    def core(X):
        a = X[:2]
        X[:2] += a
        print(end=str(X[:3])[:0])
        del a
    led = peak(core)
    assert led.peak_tiles == {"a": 64, "a tile of X": 96}


def test_tiles_in_lists_tuples_and_dicts_count():
    def core(X):
        stages = [X[:1], X[1:2]]
        more = {"a": X[2:3]}
        stages.append([more["a"].T])
        pair = (X[3:], None)
        X[0] = pair[0][0]
    led = peak(core)
    assert led.peak_tiles == {"stages": 64, "stages = more": 32, "pair": 32}


def test_a_dictionary_of_tiles_counts():
    def core(X):
        more = {"a": X[:1], "b": X[1:2]}
        X[0] = more["a"][0]
    assert peak(core).peak_tiles == {"more": 64}


def test_what_a_statement_reads_or_has_loaded_is_on_chip_when_it_loads():
    """The old value of a name counts until the statement that replaces it has read it; so do two loads of one."""
    def own_value(X):
        acc = X[:2]
        acc = acc + X[2:]

    def in_place(X):
        acc = X[:2]
        acc += X[2:]

    def two(X):
        a, b = X[:2], X[2:]                                             # noqa: F841

    for core in (own_value, in_place, two):
        assert peak(core).peak_onchip_bytes == 128, core.__name__

    def replaced(X):
        for i in range(3):
            a = X[i:i + 1].astype(np.float32)                           # noqa: F841
    assert peak(replaced).peak_onchip_bytes == 32


def test_the_peak_does_not_hang_on_how_python_compiles_a_line():
    def core(X):
        for i in range(3):
            a = X[i:i + 1]; b = a                                       # noqa: E702
            c = X[i:i + 1]                                              # noqa: F841
        return b
    assert peak(core).peak_onchip_bytes == 96


def test_a_name_in_a_closure_counts_once():
    def core(X):
        for i in range(3):
            a = X[i:i + 1]
            f = lambda: a                                               # noqa: E731, B023
        return f
    assert peak(core).peak_onchip_bytes == 32


@pytest.mark.parametrize("budget", [159, 160, None])
def test_a_budget_is_kept_or_the_error_says_what_is_there(budget):
    def core(X):
        a = X[:2]
        b = X[:3]
        done.append("b is loaded")
        X[:2] = a + b[:2]

    done = []
    if budget == 159:
        with pytest.raises(OnChipFullError, match=r"160 bytes on chip, the budget is 159: a 64 \+ b 96"):
            peak(core, onchip_bytes=budget)
        assert not done                                             # raised by the load itself
    else:
        assert peak(core, onchip_bytes=budget).peak_onchip_bytes == 160


def test_a_budget_that_cannot_hold_one_tile_names_both():
    Q, rule = np.zeros((64, 32), np.float32), Rule(64, 64, scale=1.0)
    with pytest.raises(OnChipFullError, match=r"need 2,048 bytes on chip, the budget is 2,047: Qi 2,048"), \
            Ledger(onchip_bytes=2047) as led:
        fa2.forward_head(*(led.hbm(Q) for _ in range(3)), rule, 16, 16)


def test_a_budget_is_enough_exactly_at_the_peak():
    Q, rule = np.zeros((64, 32), np.float32), Rule(64, 64, scale=1.0)
    with Ledger() as led:
        fa1.forward_head(*(led.hbm(Q) for _ in range(3)), rule, 16, 16)
    need = led.peak_onchip_bytes
    with Ledger(onchip_bytes=need) as led:
        fa1.forward_head(*(led.hbm(Q) for _ in range(3)), rule, 16, 16)
    with pytest.raises(OnChipFullError, match=f"need {need:,} bytes on chip, the budget is {need - 1:,}"), \
            Ledger(onchip_bytes=need - 1) as led:
        fa1.forward_head(*(led.hbm(Q) for _ in range(3)), rule, 16, 16)


# --- bad input ------------------------------------------------------------------------------------------------

def test_a_forgotten_array_is_noticed():
    Q, rule = np.zeros((8, 4), np.float32), Rule(8, 8, scale=1.0)
    with Ledger() as led, pytest.raises(TypeError, match=r"V in forward_head is a plain array \(8, 4\).*led.hbm\(V\)"):
        fa2.forward_head(led.hbm(Q), led.hbm(Q), Q, rule, 4, 4)


def test_numbers_taken_off_the_chip_in_a_core_are_noticed():
    def core(X):
        outside = np.asarray(X[:])
        X[:] = outside * 2
    with pytest.raises(TypeError, match="outside in core is a plain array"):
        peak(core)


def test_outside_of_its_with():
    led = Ledger()
    with pytest.raises(RuntimeError, match="inside of `with"):
        led.hbm(NUMBERS)
    with led:
        X = led.hbm(NUMBERS, "X")
        tile = X[:]
    for use in (lambda: X[:], lambda: X.__setitem__(0, 1)):
        with pytest.raises(RuntimeError, match=r"ledger of array X \(2, 3\) is closed"):
            use()
    with pytest.raises(RuntimeError, match="inside of `with"):
        led.hbm(NUMBERS)
    with pytest.raises(RuntimeError, match="make a new one"), led:
        pass
    np.testing.assert_array_equal(np.asarray(X), NUMBERS)
    assert np.asarray(X, dtype=float).dtype == float
    assert np.dot(tile, tile.T).tolist() == (NUMBERS @ NUMBERS.T).tolist() and float(tile.sum()) == 21  # as any array
    assert (led.matmul_flops, led.other_flops) == (0, 0)


def test_one_ledger_at_a_time():
    with Ledger() as led:
        with pytest.raises(RuntimeError, match="another ledger is open"), Ledger():
            pass
        assert led.hbm(NUMBERS)[0].size == 3                        # the first goes on


@pytest.mark.parametrize(("x", "says"), [
    (NUMBERS.astype(object), "Q has dtype object"), (NUMBERS.astype(complex), "Q has dtype complex128"),
    (np.array(["a"]), "Q has dtype <U1"), (np.zeros(2, [("a", float)]), "Q has dtype"),
    ([1.0], "Q must be a NumPy array, got list"), (None, "got NoneType"),
    (np.ma.masked_array(NUMBERS), "got MaskedArray")])
def test_what_cannot_be_metered(x, says):
    with Ledger() as led, pytest.raises(TypeError, match=says):
        led.hbm(x, "Q")
    assert led.arrays == []


def test_object_arrays_cannot_be_made_inside_either():
    with Ledger() as led, pytest.raises(TypeError, match="dtype object"):
        np.empty_like(led.hbm(NUMBERS), dtype=object)


@pytest.mark.parametrize(("budget", "error", "message"), [
    (-1, ValueError, "at least 0, got -1"), (float("nan"), TypeError, "whole number, got nan"),
    ("10", TypeError, "whole number, got '10'"), (True, TypeError, "whole number, got True")])
def test_a_budget_is_a_number_of_bytes(budget, error, message):
    with pytest.raises(error, match=message):
        Ledger(onchip_bytes=budget)
    with pytest.raises(OnChipFullError, match="need 128 bytes on chip, the budget is 0: a tile of X 128"):
        peak(lambda X: X[:], onchip_bytes=0)


def test_the_table_shows_every_count():
    with Ledger() as led:
        fa2.forward_head(*(led.hbm(NUMBERS, name) for name in "QKV"), Rule(2, 2, scale=1.0), 1, 2)
    words = led.table().replace(",", "").split()
    assert words.count("(inside)") == 2 and {"Q", "K", "V", "float32", "m_new"} <= {*words}
    for count in (*(r.reads for r in led.arrays), *(r.writes for r in led.arrays), led.matmul_flops, led.other_flops,
                  led.exps, led.peak_onchip_bytes):
        assert str(count) in words
    with Ledger() as empty:
        pass
    assert "nothing" in empty.table()


# --- speed ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("tile", [32, 64])
@pytest.mark.parametrize("core", [fa1, fa2])
def test_metering_is_not_slow(core, tile):
    """At most 10 times the plain run, as `python -m fa_ref bench` measures it; here with room for a busy machine."""
    with_ledger, without = bench.metering(tile, core, N=512)
    assert with_ledger < 25 * without


# --- what could slip past ---------------------------------------------------------------------------------------

def in_memory(use):
    """Do use(X) with X (4, 8) in memory; return the ledger and what came out."""
    with Ledger() as led:
        result = use(led.hbm(np.ones((4, 8), np.float32), "X"))
    return led, result


def test_a_tile_of_a_closed_ledger_is_not_computed_with_beside_another():
    with Ledger() as first:
        old = first.hbm(np.ones((2, 3)))[:]
    assert (old + 1).sum() == 12                                        # alone it is an array like any other
    with Ledger() as second:
        new = second.hbm(np.ones((2, 3)))[:]
        for mix in (lambda: old * new, lambda: new * old, lambda: np.add(new, 1, out=old)):
            with pytest.raises(RuntimeError, match="a tile of a ledger that is closed"):
                mix()
        assert second.other_flops == 0 and np.asarray(old).sum() == 6


def test_single_numbers_can_be_stored():
    def core(X):
        m = np.empty_like(X, shape=(2,))
        for i in range(2):
            m[i] = X[i].sum()
        X[0, 0] += 1
        a = X[:1]
        a[0, 0] = a[0, 1]
        m[1] = m[0]
        return m
    led, m = in_memory(core)
    assert led.arrays[1].writes == 3 and np.isfinite(np.asarray(m)).all()


def test_the_rest_of_the_axes_may_be_left_to_an_ellipsis():
    led, (a, b) = in_memory(lambda X: (X[...], X[..., 1]))
    assert a.shape == (4, 8) and b.shape == (4,) and led.arrays[0].reads == 36


def test_keywords_make_arrays_too():
    led, _ = in_memory(lambda X: [np.zeros_like(a=X), np.empty_like(prototype=X, shape=(2,)), np.ones_like(X)])
    assert [record.shape for record in led.arrays] == [(4, 8), (4, 8), (2,), (4, 8)]


def test_floating_work_with_a_whole_result_counts():
    def core(X):
        t = X[:1]
        np.add(t, t, out=np.zeros(t.shape, int), casting="unsafe")
        t.sum(dtype=int)
    assert in_memory(core)[0].other_flops == 16


@pytest.mark.parametrize(("misuse", "error", "message"), [
    (lambda X: complex(X[0, 0]), TypeError, "__complex__ is not counted"),
    (lambda X: np.matmul(X[:2, :3], X[:4, :3], axes=[(0, 1), (1, 0), (0, 1)]), TypeError, r"axes=…\) is not counted"),
    (lambda X: X.__setitem__(0, np.full(8, 1j)), TypeError, "a complex number cannot be stored in array X"),
    (lambda X: X[..., ...], TypeError, "whole numbers and slices"),
    (lambda X: X[:2] @ [[1.0]] * 8, ValueError, "mismatch"),
])
def test_what_would_lose_a_count_or_a_number_is_refused(misuse, error, message):
    with pytest.raises(error, match=message):
        in_memory(misuse)


def test_whole_numbers_of_few_bits_are_no_floating_point():
    with Ledger() as led, pytest.raises(TypeError, match="dtype int4"):
        led.hbm(np.ones(4, ml_dtypes.int4))
    with Ledger() as led, pytest.raises(TypeError, match=r"dtype \|V8"):
        led.hbm(np.ones(4, "V8"))


def test_names_and_totals_are_checked():
    with Ledger() as led:
        with pytest.raises(TypeError, match=r"must be a string, got \('a',\)"):
            led.hbm(np.ones(3), ("a",))
        led.hbm(np.ones(3))
    assert "(given)" in led.table() and led.total("writes") == 0
    with pytest.raises(ValueError, match="unknown count 'foo'"):
        led.total("foo")


def test_a_pickled_tile_holds_its_numbers():
    _, tile = in_memory(lambda X: X[:1])
    assert type(pickle.loads(pickle.dumps(tile))) is np.ndarray
