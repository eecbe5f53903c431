"""What the pictures of docs/tensor_cores.md say is true: held against products, loads, and a run of fa2_mma.

What is drawn is read back from the sheet: boxes, where they lie, and the words in them.
"""

import re
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import cuda_kernels
from cuda_kernels import fa2_mma, simulator, swizzled
from cuda_kernels.ptx import matrices
from cuda_kernels.simulator import watched
from cuda_kernels.simulator.flights import Flights

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))
import tensor_core_pictures as drawn  # noqa: E402

simulated = pytest.mark.skipif(not cuda_kernels.SIMULATED, reason="watches the simulator; kernels run on a GPU here")
SOURCE = Path(fa2_mma.__file__).read_text(encoding="utf-8")
WHITE, COLORS = "#ffffff", ("BLUE", "ORANGE", "GREEN", "VIOLET")


class Sheet:
    """A sheet that remembers its boxes (x, y, w, h, fill, words) and its texts (x, y, words)."""

    def __init__(self, _):
        self.boxes, self.texts = [], []

    def box(self, x, y, w, h, fill="none", words="", **_):
        self.boxes.append((x, y, w, h, fill, words))

    def text(self, x, y, words, **_):
        self.texts.append((x, y, words))

    def arrow(self, *_, **__):
        """Says nothing."""


def sheet(picture):
    return picture(mock.Mock(Sheet=Sheet, **{name: name for name in COLORS}))


# --- fragments ------------------------------------------------------------------------------------------------

def cells(boxes, letter):
    """{(lane, register): its elements (row, column)} of the grid whose registers have this letter."""
    grid = [box for box in boxes if re.search(rf"\b{letter}\d$", box[5])]
    left, top = min(box[0] for box in grid), min(box[1] for box in grid)
    w, h = (min(box[n] for box in boxes if box[5]) for n in (2, 3))                         # of one element
    found = {}
    for x, y, width, height, _, words in grid:
        lane, register = re.fullmatch(rf"(\d+)\s{letter}(\d)", words).groups()
        where = [(round((y - top) / h) + r, round((x - left) / w) + c)
                 for r in range(round(height / h)) for c in range(round(width / w))]
        assert found.setdefault((int(lane), int(register)), where) is where                 # named once
    return found


def brought(matrix, held, registers):
    """What 32 lanes bring of a matrix if they hold what the picture says: (32, registers), pairs as uint32."""
    parts = [[[matrix[where] for where in held[lane, n]] for n in range(registers)] for lane in range(32)]
    return np.array(parts, matrix.dtype)


def test_lanes_hold_what_the_product_wants():
    """Distinct numbers, brought as drawn, and fetched as drawn; no sum is rounded."""
    boxes = sheet(drawn.fragments).boxes
    in_A, in_B, in_C = (cells(boxes, letter) for letter in "abc")
    A, B = np.arange(256, dtype=np.float16).reshape(16, 16), np.arange(-64, 64, dtype=np.float16).reshape(16, 8)
    C = np.arange(128, dtype=np.float32).reshape(16, 8) * 1000
    a, b = (brought(X, held, n).view(np.uint32)[..., 0] for X, held, n in ((A, in_A, 4), (B, in_B, 2)))
    c = matrices.product(a, b, brought(C, in_C, 4)[..., 0], np.float16)
    D = np.zeros((16, 8), np.float32)
    for (lane, n), [where] in in_C.items():
        D[where] = c[lane, n]
    assert np.array_equal(D, A.astype(np.float32) @ B.astype(np.float32) + C)


def test_the_quad_is_coloured_and_has_what_the_text_says():
    boxes = sheet(drawn.fragments).boxes
    for *_, fill, words in boxes:
        lane = int(words.split()[0])
        assert (fill != WHITE) == (lane in (4, 5, 6, 7)) and fill in (WHITE, COLORS[lane % 4])
    rows = {letter: {where[0] for (lane, _), held in cells(boxes, letter).items() if 4 <= lane < 8 for where in held}
            for letter in "ac"}
    columns = {where[1] for (lane, _), held in cells(boxes, "b").items() if 4 <= lane < 8 for where in held}
    assert rows == {"a": {1, 9}, "c": {1, 9}} and columns == {1}


# --- loads ----------------------------------------------------------------------------------------------------

def named(X):
    """For Qi, Kj and Vj in turn: the rows (32, 8) of X (16, 16) that the lanes name in the picture."""
    boxes = [box for box in sheet(drawn.matrix_loads).boxes if box[5].startswith("lane")]
    tops, lefts = (sorted({box[n] for box in boxes}) for n in (1, 0))
    for tile in range(3):
        rows = {int(words[5:]): X[tops.index(y), (lefts.index(x) - 2 * tile) * 8:][:8]
                for x, y, _, _, _, words in boxes if lefts.index(x) // 2 == tile}
        yield np.array([rows[lane] for lane in range(32)])


def result(a, b):
    """The two Cs of an A and two Bs side by side: (16, 16)."""
    out = np.zeros((16, 16), np.float32)
    for n in range(2):
        C = np.zeros((16, 8), np.float32)
        C[matrices.IN_C] = matrices.product(a, b[:, 2 * n:2 * n + 2], np.zeros((32, 4), np.float32), np.float16)
        out[:, 8 * n:8 * n + 8] = C
    return out


def test_rows_named_as_drawn_make_the_products():
    """Q Kᵀ from Qi and Kj, and Q V with Vj as the right factor."""
    rng = np.random.default_rng(0)
    Q, K, V = (rng.integers(-9, 10, (16, 16)).astype(np.float16) for _ in range(3))
    (Q_rows, *_), (_, K_rows, _), (*_, V_rows) = map(named, (Q, K, V))
    trans = [trans for *_, trans in drawn.NAMED.values()]
    a, k, v = (matrices.spread(rows, how) for rows, how in zip((Q_rows, K_rows, V_rows), trans, strict=True))
    Q, K, V = (X.astype(np.float32) for X in (Q, K, V))
    assert np.array_equal(result(a, k), Q @ K.T) and np.array_equal(result(a, v), Q @ V)


def test_lanes_name_what_the_kernel_says():
    for name, (code, rows, chunks, trans) in drawn.NAMED.items():
        found = eval(f"({code})", {"lane": np.arange(32)})
        assert np.array_equal(found[0], rows) and np.array_equal(found[1], chunks)
        row = {"Qi": f"Q_row = cell(w * R + {code})\n", "Kj": f"K_row = Kj + cell({code}) ", "Vj": f"Vj + cell({code})"}
        assert row[name] in SOURCE
        loads = re.findall(rf"ptx\.(ldmatrix_x4\w*)\(tile, further\({name[0]}_row", SOURCE)
        times = 2 if name == "Qi" else 1                            # before the first tile, and for every tile
        assert loads == ["ldmatrix_x4_trans" if trans else "ldmatrix_x4"] * times


def test_a_lane_gets_the_pair_that_is_drawn():
    X = np.arange(64, dtype=np.uint32).reshape(8, 8)
    boxes = [box for box in sheet(drawn.matrix_loads).boxes if box[5].isdigit()]
    lefts = min(box[0] for box in boxes), min(box[0] for box in boxes if box[2] < box[3])
    top = min(box[1] for box in boxes)
    for trans in (False, True):
        pairs = matrices.spread(X.astype(np.uint16), trans)[:, 0]
        for x, y, w, h, _, words in boxes:
            if (w < h) == trans:
                r, c = round((y - top) / 23), round((x - lefts[trans]) / 24)
                assert pairs[int(words)] == X[r, c] | X[r + trans, c + (not trans)] << 16
    assert len(boxes) == 64


# --- from scores to P -----------------------------------------------------------------------------------------

def test_scores_become_p_in_their_lane():
    found = sheet(drawn.scores_to_p)
    S = {(y, x): re.findall(r"\d+", words) for x, y, _, _, _, words in found.boxes if "S[" in words}
    P = [(y, x, w, *re.findall(r"\d+", words)) for x, y, w, _, _, words in found.boxes if "P[" in words]
    tops = sorted({y for y, _ in S})
    below = sorted({y for y, *_ in P})
    assert len(S) == 32 and len(P) == 16 and len(tops) == len(below) == 2
    for y, x, w, lane, f in P:
        row = tops[below.index(y)]
        assert [S[row, x], S[row, x + w / 2]] == [[lane, str(2 * int(f))], [lane, str(2 * int(f) + 1)]]
    assert "256 of 256 elements" in found.texts[-1][2]


def test_two_products_are_a_left_factor():
    """With registers as `two_products` numbers them, and pairs made as the kernel makes them."""
    rng = np.random.default_rng(1)
    scores, V = rng.integers(-9, 10, (16, 16)).astype(np.float16), rng.integers(-9, 10, (16, 8)).astype(np.float16)
    lanes, registers = drawn.two_products()
    S = np.zeros((32, 8), np.float16)
    S[lanes, registers] = scores
    C = np.zeros((16, 8), np.float32)
    b = V[matrices.IN_B].view(np.uint32)[..., 0]
    C[matrices.IN_C] = matrices.product(S.view(np.uint32), b, np.zeros((32, 4), np.float32), np.float16)
    assert np.array_equal(C, scores.astype(np.float32) @ V.astype(np.float32))


# --- swizzled tiles -------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("D", "title", "turns"), [
    (64, "D = 64, row after row", 8), (64, "D = 64, swizzled", 1), (32, "D = 32, row after row", 4),
    (32, "D = 32, swizzled", 1)])
def test_banks(D, title, turns):
    """Turns are counted here bank by bank, and chunks lie where they are drawn."""
    found, plain = sheet(drawn.swizzle), "swizzled" not in title
    [(left, top, words)] = [text for text in found.texts if text[2].startswith(title)]
    assert words == f"{title}: {turns} turn" + "s" * (turns > 1)
    cell = drawn.plainly(swizzled.places(D)[0])
    at = np.array([[r * D + 8 * c if plain else cell(r, c) for c in range(D // 8)] for r in range(8)])
    for c in range(D // 8):
        banks = [(2 * start // 4 + n) % 32 for start in at[:, c] for n in range(4)]
        assert max(map(banks.count, banks)) == turns
    high = 20
    panel = [box for box in found.boxes if left <= box[0] < left + 300 and top < box[1] < top + 30 + 8 * high]
    shown = {(round((y - top - 30) / high), round((x - left) / w)): int(words) for x, y, w, _, _, words in panel}
    orange = {(round((y - top - 30) / high), round((x - left) / w)) for x, y, w, _, fill, _ in panel if fill != WHITE}
    assert shown == {divmod(start // 8, 8): c for r in range(8) for c, start in enumerate(at[r].tolist())}
    assert orange == {divmod(start // 8, 8) for start in at[:, 2].tolist()}


# --- what a run does ------------------------------------------------------------------------------------------

def happenings(monkeypatch, d):
    """[(meetings before it, what, cell of shared memory, lane)] of one warp, three tiles of keys; what: "copied to",
    "read", "written"."""
    log, flying = [], []
    access, begin, wait = watched.BlockWatch.access, Flights.begin, Flights.wait

    def note(watch, what, addresses, array, lane):
        first = watched.address_of(array.origin.data)
        met = watch.counts.barriers + watch.counts.syncwarps
        log.extend((met, what, (address - first) // 2, lane.number) for address in addresses)

    def on_access(watch, action, array, address):
        if array.origin.space == "shared" and not flying:
            note(watch, "read" if action == "reads" else "written", [address], array, array.device.block.running)
        access(watch, action, array, address)

    def on_begin(flights, target, numbers):
        note(flights.block.watch, "copied to", target.addresses(), target, flights.block.running)
        quietly(begin, flights, target, numbers)

    def quietly(function, *arguments):
        flying.append(True)                             # that a copy arrives is no access of the thread's own
        function(*arguments)
        flying.pop()

    monkeypatch.setattr(watched.BlockWatch, "access", on_access)
    monkeypatch.setattr(Flights, "begin", on_begin)
    monkeypatch.setattr(Flights, "wait", lambda *arguments: quietly(wait, *arguments))
    q, k, v = (np.zeros((1, 1, n, d), np.float16) for n in (16, 48, 48))
    with simulator.audit() as audit:
        cuda_kernels.forward(q, k, v, kernel="fa2_mma", threads=32, block_q=16, block_k=16)
    assert audit.ok
    return log


@simulated
def test_the_timeline_is_what_happens(monkeypatch):
    d, parts = 16, [{} for _ in range(6)]
    for met, what, cell, _ in happenings(monkeypatch, d):
        place = drawn.PLACES[0 if cell < 16 * d else 1 + (cell - 16 * d) // (2 * 16 * d)]
        parts[met].setdefault(place, set()).add(what)
    assert parts == [{place: {what} for place, what in part.items()} for part in drawn.parts(3)]


@simulated
def test_the_timeline_counts_tiles():
    words = [box[5] for box in sheet(drawn.run_ahead).boxes if "j = " in box[5]]
    assert sorted(words) == [f"copied to: j = {j}" for j in range(3)]


@simulated
def test_o_leaves_as_drawn(monkeypatch):
    D = 32
    cell = drawn.plainly(swizzled.places(D)[0])
    where = {cell(r, c) + n: (r, 8 * c + n) for r in range(16) for c in range(D // 8) for n in range(8)}
    written, read = np.full((16, D), -1), np.full((16, D), -1)
    for met, what, at, lane in happenings(monkeypatch, D):
        if met >= 4:
            {"written": written, "read": read}[what][where[at]] = lane
    assert np.array_equal(written[:8], drawn.writers(D).repeat(2, 1))
    assert np.array_equal(read, drawn.storers(D)[0].repeat(8, 1))
    words = [int(box[5]) for box in sheet(drawn.output).boxes]
    assert words == [n for r in range(8) for n in (*written[r, ::2], *read[r, ::8])]
