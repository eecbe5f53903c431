"""The pictures of docs/tensor_cores.md, drawn by `python docs/pictures.py` from arrays and functions of the kernels.

Who holds what is asked of `cuda_kernels.ptx.matrices`, where chunks lie of `cuda_kernels.swizzled`. What a picture says
is computed in a function beside it. tests/test_tensor_core_pictures.py holds it against products, loads and a run.
"""

from unittest import mock

import numpy as np

from cuda_kernels import swizzled
from cuda_kernels.ptx import matrices

QUAD, WARP, BANKS, GROUP = 1, 32, 32, 4                 # the quad in colour: lanes 4 … 7; banks that a chunk fills
LANE = np.arange(WARP)


# --- fragments ------------------------------------------------------------------------------------------------

def holders(layout, shape):
    """(lane, register) of every element of a matrix, from what IN_A, IN_B or IN_C say the other way round."""
    lanes, registers = np.full(shape, -1), np.full(shape, -1)
    lane, register, *_ = np.indices(layout[0].shape)
    lanes[layout], registers[layout] = lane, register
    return lanes, registers


def color(draw, lane):
    """A colour for each lane of the quad; white for the others."""
    return (draw.BLUE, draw.ORANGE, draw.GREEN, draw.VIOLET)[lane % 4] if lane // 4 == QUAD else "#ffffff"


def fragments(draw):
    """A, B and C of one product; in each cell the lane and its register."""
    s = draw.Sheet(584)
    w, h, top = 19, 28, 62
    for name, layout, columns, left, (across, down) in (
            ("A", matrices.IN_A, 16, 34, (2, 1)), ("B", matrices.IN_B, 8, 366, (1, 2)),
            ("C", matrices.IN_C, 8, 532, (1, 1))):
        lanes, registers = holders(layout, (16, columns))
        what = {"A": "pairs of neighbours", "B": "pairs, one below the other", "C": "float32"}[name]
        s.text(left + columns * w / 2, 16, f"{name}  16 × {columns}", bold=True, size=13)
        s.text(left + columns * w / 2, 34, what, size=11, color=draw.FAINT)
        for x in range(columns):
            s.text(left + (x + 0.5) * w, top - 9, str(x), size=10, color=draw.FAINT)
        for r in range(0, 16, down):
            for x in range(0, columns, across):
                words = f"{lanes[r, x]}" + (" " if name == "A" else "\n") + f"{name.lower()}{registers[r, x]}"
                s.box(left + x * w, top + r * h, w * across, h * down, color(draw, lanes[r, x]), words, size=10.5)
    for r in range(16):
        s.text(28, top + (r + 0.5) * h, str(r), size=10, color=draw.FAINT, align="right")
    s.text(34, 530, "In each cell: the lane, and which of its registers. A register of A and B holds two numbers.",
           align="left")
    s.text(34, 550, "Coloured: lanes 4 to 7, a quad. It has two rows of A and of C, and one column of B.", align="left")
    s.text(34, 570, "The product: C += A B.", align="left", color=draw.FAINT)
    return s


# --- loads ----------------------------------------------------------------------------------------------------

# Which row and which chunk of a tile of 16 rows and 2 chunks a lane names, as the kernel writes it; .trans or not.
NAMED = {
    "Qi": ("lane % 16, lane // 16", LANE % 16, LANE // 16, False),
    "Kj": ("lane // 16 * 8 + lane % 8, lane // 8 % 2", LANE // 16 * 8 + LANE % 8, LANE // 8 % 2, False),
    "Vj": ("lane % 16, lane // 16", LANE % 16, LANE // 16, True),
}


def receivers(trans):
    """The lane that gets each element of an 8 × 8 matrix, and whether as the first of its pair: two (8, 8) arrays."""
    pairs = matrices.spread(np.arange(64, dtype=np.uint16).reshape(8, 8), trans)[:, 0]
    halves = pairs.view(np.uint16).reshape(WARP, 2)                 # of each lane: the numbers of the elements it got
    lanes, first = np.zeros(64, int), np.zeros(64, bool)
    lanes[halves], first[halves] = LANE[:, None], [[True, False]]
    return lanes.reshape(8, 8), first.reshape(8, 8)


def matrix_loads(draw):
    """Which lane names which row, and what each lane gets of a matrix."""
    s = draw.Sheet(660)
    fills = (draw.BLUE, draw.ORANGE, draw.GREEN, draw.VIOLET)
    for n, (name, (code, rows, chunks, trans)) in enumerate(NAMED.items()):
        left, top, w, h = 46 + n * 226, 82, 80, 18
        s.text(left + w, 16, name + (", loaded with .trans" if trans else ""), bold=True, size=13)
        for line, words in enumerate(code.split(", ")):
            s.text(left + w, 36 + 15 * line, words + "," * (1 - line), code=True, size=10.5)
        for c in range(2):
            s.text(left + (c + 0.5) * w, top - 10, f"chunk {c}", size=10, color=draw.FAINT)
        for lane in range(WARP):
            s.box(left + chunks[lane] * w, top + rows[lane] * h, w, h, fills[lane // 8], f"lane {lane}", size=10.5)
        for r in range(16):
            s.text(left - 6, top + (r + 0.5) * h, str(r), size=10, color=draw.FAINT, align="right")
    s.text(46, 390, "A row of 16 numbers is two chunks of 8. Each lane names a chunk: where a row of a matrix begins.",
           align="left")
    for n, fill in enumerate(fills):
        s.box(46 + n * 150, 407, 18, 14, fill)
        s.text(70 + n * 150, 414, f"matrix {n}: register {n}", align="left", size=11.5)
    for left, trans, words in ((46, False, "of each matrix, a lane gets"), (272, True, "and with .trans")):
        lanes, first = receivers(trans)
        s.text(left, 450, words, align="left", bold=True, size=13)
        for r, x in np.argwhere(first):
            w, h = (24, 46) if trans else (48, 23)
            s.box(left + x * 24, 464 + r * 23, w, h, color(draw, lanes[r, x]), str(lanes[r, x]), size=10.5)
    for line, words in enumerate((
            "A cell: the two numbers of", "a lane's register. In colour:", "lanes 4 to 7, a quad.", "",
            "Without .trans: a quarter of", "A, or half of a B that lies", "transposed, as K does.", "",
            "With it: half of a B that is", "not transposed, as V.")):
        s.text(496, 473 + line * 18, words, align="left", size=11.5)
    return s


# --- from scores to P -----------------------------------------------------------------------------------------

def two_products():
    """(lane, register) of the 16 × 16 elements of two Cs side by side, as S holds them: registers 0 … 3, 4 … 7."""
    lanes, registers = holders(matrices.IN_C, (16, 8))
    return np.hstack([lanes, lanes]), np.hstack([registers, registers + 4])


def scores_to_p(draw):
    """Two Cs side by side are an A: the quad's two rows of both."""
    s = draw.Sheet(318)
    scores, pairs = two_products(), holders(matrices.IN_A, (16, 16))
    left, w, h = 52, 39, 36
    s.text(left, 18, "S: two products side by side, for keys 0 … 7 and 8 … 15", align="left", bold=True, size=13)
    s.text(left, 194, "P: the left factor of the next product", align="left", bold=True, size=13)
    for x in range(16):
        s.text(left + (x + 0.5) * w, 40, str(x), size=10, color=draw.FAINT)
    for row, top in ((QUAD, 52), (QUAD + 8, 96)):
        below = top + 154
        s.text(left - 8, top + h / 2, f"row {row}", size=11, align="right")
        s.text(left - 8, below + h / 2, f"row {row}", size=11, align="right")
        for x in range(16):
            lane, e = scores[0][row, x], scores[1][row, x]
            s.box(left + x * w, top, w, h, color(draw, lane), f"{lane}\nS[{e}]", size=10.5)
        for x in range(0, 16, 2):
            lane, f = pairs[0][row, x], pairs[1][row, x]
            s.box(left + x * w, below, 2 * w, h, color(draw, lane), f"lane {lane}\nP[{f}]", size=10.5)
        for half in (0, 8):
            s.box(left + half * w, top, 8 * w, h, line=2.2)
    s.text(left, 147, "exp and rounding: in each lane by itself, two of S become one of P", align="left",
           color=draw.RED)
    for x in range(1, 16, 2):
        s.arrow(left + x * w, 158, left + x * w, 179, color=draw.RED)
    agree = int((scores[0] == pairs[0]).sum())
    s.text(left, 304, f"In all 16 rows: {agree} of 256 elements stay in the lane that has them.", align="left")
    return s


# --- swizzled tiles -------------------------------------------------------------------------------------------

def groups_of_banks(D, plain=False):
    """(rows, chunks): for 8 rows of D numbers, in which line of 128 bytes, and which of its 8 groups of 4 banks."""
    r, c = np.ogrid[:8, :D // swizzled.CHUNK]
    cell = plainly(swizzled.places(D)[0])
    at = r * D + c * swizzled.CHUNK if plain else cell(r, c)
    return np.divmod(at // swizzled.CHUNK, BANKS // GROUP)


def plainly(function):
    """A function of the device as a function of Python."""
    return getattr(function, "py_func", None) or function.fn


def swizzle(draw, shown=2):
    """Where the chunks of 8 rows lie, plain and swizzled; the chunks that are read at once in colour."""
    s = draw.Sheet(430)
    w, h = 38, 20
    for D, top in ((64, 16), (32, 242)):
        for left, plain in ((66, True), (386, False)):
            lines, groups = groups_of_banks(D, plain)
            turns = np.bincount(groups[:, shown]).max()
            s.text(left, top, f"D = {D}, {'row after row' if plain else 'swizzled'}: "
                   f"{turns} {'turn' if turns == 1 else 'turns'}", align="left", bold=True, size=12.5)
            for g in range(8):
                s.text(left + (g + 0.5) * w, top + 19, f"{g * GROUP}–{g * GROUP + 3}", size=10, color=draw.FAINT)
            for r, c in np.ndindex(lines.shape):
                s.box(left + groups[r, c] * w, top + 30 + lines[r, c] * h, w, h,
                      draw.ORANGE if c == shown else "#ffffff", str(c), size=11, bold=c == shown)
            for line in range(lines.max() + 1) if plain else ():
                rows = sorted(set(np.argwhere(lines == line)[:, 0]))
                s.text(left - 6, top + 30 + (line + 0.5) * h, f"r = {', '.join(map(str, rows))}", size=10,
                       align="right")
            if plain:
                s.text(left - 6, top + 19, "banks", size=10, color=draw.FAINT, align="right")
    s.text(66, 388, "In each cell: the number of the chunk of 8 numbers that lies there, in 4 banks.", align="left")
    s.text(66, 410, f"Orange: chunk {shown} of each of the 8 rows, which ldmatrix reads at once.", align="left")
    return s


# --- copies that run ahead ------------------------------------------------------------------------------------

PLACES = ("Qi", "Kj, Vj: even j", "Kj, Vj: odd j")


def parts(tiles):
    """[{place: what happens there}] between the points where threads meet: copied to, read, or written."""
    result = [{"Qi": "copied to", PLACES[1]: "copied to"}]
    for j in range(tiles):
        result.append({"Qi": "read", PLACES[1 + j % 2]: "read"})
        if j + 1 < tiles:
            result[-1][PLACES[2 - j % 2]] = "copied to"
    return [*result, {"Qi": "written"}, {"Qi": "read"}]


def run_ahead(draw, tiles=3):
    """Who has which buffer while three tiles of keys go by."""
    s = draw.Sheet(264)
    titles = ["(1)", *(f"(3) – (9), j = {j}" for j in range(tiles)), "(10)", "store"]
    widths = [114, *[120] * tiles, 58, 58]
    left, top, h = 102, 44, 40
    fills = {"copied to": draw.ORANGE, "read": draw.BLUE, "written": draw.VIOLET}
    copies = 0
    for n, (title, width, part) in enumerate(zip(titles, widths, parts(tiles), strict=True)):
        s.text(left + width / 2, 16, title, bold=True, size=11.5)
        for row, place in enumerate(PLACES):
            done = part.get(place)
            words = {"copied to": f"{done}: j = {copies}", None: ""}.get(done, done)
            if row == 0 and done == "copied to":
                words = done
            s.box(left, top + row * h, width, h, fills.get(done, "#ffffff"), words, edge="#dcdcd6", size=10.5)
        copies += "copied to" in part.values()
        if n:
            strong = n <= tiles
            s.arrow(left, 30, left, top + 3 * h + 8, style="-", line=3 if strong else 1.5, color=draw.RED)
        left += width
    for row, place in enumerate(PLACES):
        s.text(96, top + (row + 0.5) * h, place, size=11, align="right")
    s.text(14, 200, "Thick red: ptx.wait_copies(0), then cuda.syncthreads(), the one barrier of a tile. Thin red: "
           "cuda.syncwarp.", align="left", size=11.5)
    s.text(14, 222, "Orange: under way. A group: begun by copy_async, closed by ptx.commit_copies(), there after the "
           "wait.", align="left", size=11.5)
    s.text(14, 244, "Blue: read by ldmatrix; at the end by store. Violet: pairs of O take the place of Qi.",
           align="left", size=11.5)
    s.text(14, 16, "time →", align="left", size=11.5, color=draw.FAINT)
    return s


# --- the output -----------------------------------------------------------------------------------------------

def writers(D):
    """The lane that writes each pair of O on chip, for rows 0 … 7: (8, D / 2)."""
    lanes, _ = holders(matrices.IN_C, (16, 8))
    return np.hstack([lanes[:8, ::2]] * (D // 8))


def storers(D):
    """The lane that takes each chunk to memory, and in which step, for one slab: two (16, D / 8) arrays."""
    store = plainly(swizzled.functions(D, 1, np.float16, True)[3])
    lanes, steps = np.full((16, D // 8), -1), np.full((16, D // 8), -1)
    for lane in range(WARP):
        with mock.patch.object(swizzled.ptx, "store_chunk") as chunk:
            store(None, 0, 16, None, 0, 0, 0, 16, lane, WARP)
        for step, (_, (_, _, row, x), _, _) in enumerate(call.args for call in chunk.call_args_list):
            lanes[row, x // 8], steps[row, x // 8] = lane, step
    return lanes, steps


def output(draw, D=32):
    """Pairs go to Qi's place, chunks of 16 bytes go on to memory."""
    s = draw.Sheet(292)
    pairs, (lanes, steps) = writers(D), storers(D)
    h, w, top = 24, 20, 60
    for left, words in ((34, "written on chip, 4 bytes at a time"), (372, "stored in memory, 16 bytes at a time")):
        s.text(left, 18, words, align="left", bold=True, size=12.5)
        for c in range(D // 8):
            s.text(left + (c + 0.5) * 4 * w, 44, f"channels {c * 8} …", size=10, color=draw.FAINT)
    for r in range(8):
        s.text(28, top + (r + 0.5) * h, str(r), size=10, color=draw.FAINT, align="right")
        for x in range(D // 2):
            s.box(34 + x * w, top + r * h, w, h, color(draw, pairs[r, x]), str(pairs[r, x]), size=10.5)
        for c in range(D // 8):
            s.box(372 + c * 4 * w, top + r * h, 4 * w, h, color(draw, lanes[r, c]), str(lanes[r, c]), size=10.5)
    rows = sorted(set(np.argwhere(steps == 0)[:, 0]))
    s.text(34, 272, f"In each cell: the lane. D = {D}: one step of store takes rows {rows[0]} … {rows[-1]}, a row of "
           f"{2 * D} bytes by {D // 8} lanes side by side.", align="left", size=11.5)
    return s


PICTURES = (fragments, matrix_loads, scores_to_p, swizzle, run_ahead, output)
