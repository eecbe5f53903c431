"""Draw the pictures of gpu.md, tensor_cores.md and schedule.md: `python docs/pictures.py` writes docs/pictures/*.svg.

    python docs/pictures.py png FOLDER          the same as PNG, somewhere else

Needs matplotlib, which `make test` installs. What the pictures say about the
kernels, `tests/test_pictures.py` holds against the kernels. Those of docs/schedule.md are made in schedule_pictures.py,
those of docs/tensor_cores.md in tensor_core_pictures.py.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("FA_REF_CUDA", "sim")
import schedule_pictures
import tensor_core_pictures

from cuda_kernels import fa2

FOLDER = Path(__file__).parent / "pictures"

# The H200. Memory: NVIDIA's data sheet. The rest: the Hopper tuning guide and the CUDA programming guide.
MULTIPROCESSORS, REGISTERS, SHARED_KB, L2_MB, HBM_GB, BANKS = 132, 65_536, 228, 50, 141, 32

# What fa2 does to shared memory between two barriers (r read, w written), and the barrier that ends each part.
TIMELINE = [
    ("(3)", {"Kj": "w", "Vj": "w"}, "Qi, Kj, Vj are there"),
    ("(4)", {"Qi": "r", "Kj": "r", "Sij": "w"}, "Sij is there"),
    ("(5) – (8)", {"Sij": "rw", "m": "rw", "l": "rw", "alpha": "rw"}, "P and alpha are there"),
    ("(9)", {"Sij": "r", "Vj": "r", "alpha": "r", "acc": "rw"}, "everybody is done with Vj"),
]
# Of these, what each barrier protects: one thread touches an element before it, another one after it.
PROTECTED = [("Kj",), ("Sij",), ("Sij", "alpha"), ("Vj",)]


def tile_shapes(Br, Bc, d, dv):
    """Names and shapes of what a block of fa2 keeps in shared memory."""
    return {"Qi": (Br, d + 1), "Kj": (Bc, d + 1), "Vj": (Bc, dv), "Sij": (Br, Bc + 1), "acc": (Br, dv),
            "m": (Br, 1), "l": (Br, 1), "alpha": (Br, 1)}


def machine(draw):
    """HBM, L2, multiprocessors, what is in one of them, and where fa2 keeps what."""
    s = draw.Sheet(440)
    s.box(20, 20, 660, 292, "#f4f4ee")
    s.text(34, 38, "the chip", align="left", color=draw.FAINT)
    s.box(40, 56, 350, 182, "#ffffff")
    s.text(54, 75, f"one multiprocessor of {MULTIPROCESSORS}", align="left", bold=True)
    s.box(54, 92, 322, 54, draw.GREEN)
    s.text(215, 108, f"registers: {REGISTERS:,} of 4 bytes = {REGISTERS * 4 // 1024} KB", size=12.5)
    s.text(215, 130, "t   e   r   c   x   product   p   o", code=True)
    s.box(54, 154, 322, 74, draw.ORANGE)
    s.text(215, 170, f"shared memory: up to {SHARED_KB} KB, in {BANKS} banks", size=12.5)
    s.text(215, 190, "48 KB for a block that does not ask for more", size=12.5)
    s.text(215, 212, "Qi  Kj  Vj  Sij  acc  m  l  alpha", code=True)
    for n in range(MULTIPROCESSORS - 1):
        s.box(408 + n % 17 * 15, 60 + n // 17 * 19, 12, 15, "#ffffff", edge=draw.FAINT)
    s.text(534, 224, f"{MULTIPROCESSORS - 1} more like it", color=draw.FAINT)
    s.box(40, 260, 620, 38, draw.VIOLET, f"L2 cache: {L2_MB} MB, for all multiprocessors", size=12.5)
    for x, y0, y1 in ((215, 238, 260), (534, 238, 260), (350, 298, 350)):
        s.arrow(x, y0, x, y1, style="<|-|>")
    s.text(362, 331, "4.8 TB/s", align="left")
    s.box(20, 350, 660, 70, draw.BLUE)
    s.text(350, 371, f"HBM, the memory of the GPU: {HBM_GB} GB", size=12.5)
    s.text(350, 397, "Q   K   V   O   L", code=True)
    return s


def grid(draw):
    """The blocks of fa2, and what one of them keeps on chip (areas to scale)."""
    Br, Bc, d, dv, heads, batch, Tr = 32, 32, 64, 64, 3, 2, 4
    s = draw.Sheet(406)
    s.text(20, 24, f"grid = (Tr, Hq, B) = ({Tr}, {heads}, {batch})", code=True, align="left", size=13)
    for b in range(batch):
        for h in range(heads):
            x, y = 60 + h * 84, 74 + b * 152
            s.text(x + 36, y - 12, f"h = {h}, b = {b}", size=11.5)
            for i in range(Tr):
                chosen = (i, h, b) == (1, 2, 0)
                s.box(x, y + i * 28, 72, 28, draw.ORANGE if chosen else "#ffffff", f"i = {i}", size=11.5)
    s.text(20, 370, f"{Tr * heads * batch} blocks, in any order, on any multiprocessor.", align="left")
    s.text(20, 390, "No block waits for another.", align="left")
    s.arrow(302, 116, 349, 116)
    s.box(350, 74, 330, 268, draw.GREY)
    s.text(362, 92, "on chip, in one block", align="left", bold=True)
    shapes = tile_shapes(Br, Bc, d, dv)
    for name, x, y in (("Qi", 366, 116), ("Kj", 504, 116), ("acc", 366, 194), ("Vj", 504, 194), ("Sij", 366, 272)):
        rows, columns = shapes[name]
        s.box(x, y, columns * 1.7, rows * 1.5, draw.ORANGE, name, code=True)
        s.text(x + columns * 0.85, y + rows * 1.5 + 10, f"{rows} × {columns}", size=11, color=draw.FAINT)
    for name, x in (("m", 504), ("l", 544), ("alpha", 584)):
        s.box(x, 272, 1.7, Br * 1.5, draw.ORANGE)
        s.text(x + 7, 296, name, code=True, align="left")
    used, free = fa2.shared_bytes(Br, Bc, d, dv, itemsize=4), 48 * 1024
    s.text(680, 366, f"{used:,} of {free:,} bytes", align="right")
    s.text(680, 386, f"(tiles {Br} × {Bc}, d = dv = {d}, float32)", align="right", size=11.5, color=draw.FAINT)
    return s


def stride(draw):
    """Which of 8 threads takes which element of a 4 × 6 tile."""
    br, d, T, shown = 4, 6, 8, 3
    rounds = [("#ffffff", "first round: e = 0 … 7"), (draw.BLUE, "second: e = 8 … 15"),
              (draw.GREY, "third: e = 16 … 23")]
    s = draw.Sheet(300)
    s.text(20, 24, "for e in range(t, br * d, T):     br = 4, d = 6, T = 8", code=True, align="left", size=13)
    for e in range(br * d):
        (r, x), t = divmod(e, d), e % T
        s.box(60 + x * 56, 70 + r * 50, 56, 50, draw.ORANGE if t == shown else rounds[e // T][0])
        s.text(88 + x * 56, 88 + r * 50, f"e = {e}", size=11.5, color=draw.FAINT)
        s.text(88 + x * 56, 105 + r * 50, f"t = {t}", size=13, bold=t == shown)
    for x in range(d):
        s.text(88 + x * 56, 56, f"x = {x}", size=11.5)
    for r in range(br):
        s.text(52, 95 + r * 50, f"r = {r}", size=11.5, align="right")
    s.text(430, 84, f"thread {shown} takes", align="left", bold=True)
    for n, e in enumerate(range(shown, br * d, T)):
        s.text(430, 108 + n * 22, f"e = {e:2}: r, x = {e // d}, {e % d}", code=True, align="left")
    for n, (fill, words) in enumerate(rounds):
        s.box(430, 190 + n * 26, 18, 16, fill)
        s.text(456, 198 + n * 26, words, align="left")
    s.text(430, 278, "8 threads side by side in each round", align="left", color=draw.FAINT)
    return s


def banks(draw):
    """A column of a tile with 32 columns lies in one bank; with 33 columns it goes through all of them."""
    s = draw.Sheet(360)
    left, wide, high = 56, 19.2, 19
    for top, columns, words in ((12, 32, "32 columns: a column lies in one bank. 32 threads take 32 turns."),
                                (176, 33, "33 columns: a column lies in 32 banks. 32 threads take one turn.")):
        s.text(left, top + 10, words, align="left", size=13, bold=True)
        for n, r in enumerate([0, 1, 2, 3, None, 31]):
            y = top + 26 + n * high
            s.text(left - 7, y + 9.5, "…" if r is None else f"c = {r}", size=11, align="right")
            for x in range(columns if r is not None else 0):
                bank = (r * columns + x) % BANKS
                depth = 0.42 * (1 - abs(bank - 16) / 16)            # each bank has a shade
                fill = draw.GREY if x == 32 else (1 - depth, 1 - 0.55 * depth, 1 - 0.12 * depth)
                s.box(left + x * wide, y, wide, high, fill, "" if x == 32 else str(bank), edge="#ffffff", line=0.6,
                      size=10.5)
        for first, number in ((0, 4), (5, 1)):
            s.box(left, top + 26 + first * high, wide, number * high, line=2.2, edge=draw.RED)
    s.text(left, 332, "In each cell: its bank. Grey: the column too many.", align="left")
    s.text(left, 350, "Red: what the 32 threads of a warp read at once, Kj[c, 0] for c = 0 … 31.", align="left")
    return s


def barriers(draw):
    """What fa2 reads and writes between its four barriers per tile of keys."""
    s = draw.Sheet(400)
    names = ["Qi", "Kj", "Vj", "Sij", "alpha", "m", "l", "acc"]
    left, step = 62, 122
    for n, (label, done, _) in enumerate([*TIMELINE, ("(3), next tile", *TIMELINE[0][1:])]):
        s.text(left + (n + 0.5) * step, 20, label, bold=True, size=12.5)
        for row, name in enumerate(names):
            fill, words = {"": ("#ffffff", ""), "r": (draw.BLUE, "read"), "w": (draw.ORANGE, "write"),
                           "rw": (draw.VIOLET, "read, write")}[done.get(name, "")]
            s.box(left + n * step, 40 + row * 32, step, 32, fill, words, edge="#dcdcd6", size=11.5)
    for row, name in enumerate(names):
        s.text(left - 8, 56 + row * 32, name, code=True, align="right")
    for n, ((_, _, barrier), protected) in enumerate(zip(TIMELINE, PROTECTED, strict=True)):
        x = left + (n + 1) * step
        s.arrow(x, 32, x, 306, color=draw.RED, line=3, style="-")
        s.text(x, 318 + n % 2 * 17, barrier, size=11.5, color=draw.RED)
        for name in protected:
            y = 40 + names.index(name) * 32 + 24
            s.arrow(x - 14, y, x + 16, y, line=1.8)
    s.text(left, 362, "Red: cuda.syncthreads(). Arrows: what one thread does before, another after it.", align="left")
    s.text(left, 382, "An element of m, l, acc belongs to one thread until step (10).", align="left", color=draw.FAINT)
    return s


def splits(draw):
    """Four warps share a tile of scores: by keys in FlashAttention-1, by queries in FlashAttention-2."""
    s = draw.Sheet(460)
    for x, title, owner, names, told in (
            (80, "fa1_warps.py: split-K", "shared memory", "m_part  l_part  O_part", "4 parts of each; 2 barriers"),
            (430, "fa2_warps.py: split-Q", "warp 3's own", "m  l  acc", "shuffles in the warp; no barrier")):
        split_K = x == 80
        s.text(x + 120, 24, title, size=13, bold=True)
        s.text(x + 120, 50, "keys →", size=11.5)
        s.text(x - 8, 150, "queries ↓", size=11.5, align="right")
        for w, fill in enumerate((draw.BLUE, draw.GREEN, draw.ORANGE, draw.VIOLET)):
            s.box(*((x + w * 60, 64, 60, 188) if split_K else (x, 64 + w * 47, 240, 47)), fill)
            s.text(*((x + w * 60 + 30, 150) if split_K else (x + 120, 83 + w * 47)), f"warp {w}")
        for part in (30, 90, 150, 210) if split_K else (120,):
            s.arrow(x + part, 250, x + part, 283, color=draw.RED)
        s.box(x, 236, 240, 13, line=2.5, edge=draw.RED)
        s.box(x, 284, 240, 78, draw.GREY if split_K else draw.VIOLET)
        s.text(x + 120, 301, owner)
        s.text(x + 120, 322, names, code=True)
        s.text(x + 120, 345, told)
        s.arrow(x + 120, 362, x + 120, 391, color=draw.RED)
        s.text(x + 120, 404, "one row of O", size=12.5)
    s.text(375, 438, "The square: a tile of scores. Red: one query's row of it, on the way to the output.",
           color=draw.FAINT)
    return s


PICTURES = (machine, grid, stride, banks, barriers, splits, *schedule_pictures.PICTURES,
            *tensor_core_pictures.PICTURES)


def main(kind="svg", folder=FOLDER):
    """Draw all of them."""
    from fa_ref import drawing  # brings matplotlib, which nobody needs who only reads the facts above

    for picture in PICTURES:
        picture(drawing).save(Path(folder) / f"{picture.__name__}.{kind}")


if __name__ == "__main__":
    main(*sys.argv[1:])
