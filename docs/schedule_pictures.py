"""The pictures of docs/schedule.md, drawn by `python docs/pictures.py`: small schedules, with numbers in the titles."""

from fa_ref.schedule import blocks, makespan, overlap, utilisation, warps
from fa_ref.schedule.pictures import Gantt

SMALL = {"multiprocessors": 8, "Br": 64, "Bc": 64}


def told(tables, time, units, kind=None):
    """The same tables, their titles with makespan and utilisation."""
    return {f"{title}: {makespan(table):,.0f} {time}, {units} busy {utilisation(table, kind):.0%} of the time": table
            for title, table in tables.items()}


def head(row):
    """Of a block's name, the head in it."""
    return next(part for part in row.what.split(", ") if part.startswith("head"))


def grids(_):
    """5 heads of 4 tiles on 8 multiprocessors."""
    tables = {name: blocks.schedule(name, heads=5, Nq=256, Nk=256, **SMALL) for name in ("fa1", "fa2")}
    return Gantt(told(tables, "pairs", "multiprocessors"), group=head, time="time, in pairs of tiles")


def causal_blocks(_):
    """3 causal heads of 6 tiles, in three orders."""
    tables = {f"fa2, {order}": blocks.schedule("fa2", heads=3, Nq=384, Nk=384, causal=True, order=order, **SMALL)
              for order in blocks.ORDERS}
    return Gantt(told(tables, "pairs", "multiprocessors"), group=head, time="time, in pairs of tiles")


def warps_of_a_block(_):
    """A full pair of tiles, and a causal one, cut both ways."""
    tables = {split + ", causal" * causal: warps.schedule(split, br=16, bc=32, d=16, dv=16, warps=4, causal=causal)
              for causal in (False, True) for split in warps.SPLITS}
    return Gantt(told(tables, "elements", "warps"), time="elements of shared memory read or written by a warp")


def overlap_16_bits(_, bits=16):
    """Three tiles of keys, d = 128."""
    tables = {name: overlap.schedule(name, 3, overlap.clocks(bits=bits)) for name in overlap.SCHEDULES}
    return Gantt(told(tables, "clocks", "tensor core", "tensor core"), group=lambda row: f"query tile {row.what[-1]}",
                 label=lambda row: row.what[:-2].replace("PV", "O"),
                 time="clocks (S: scores, P: exp, O: P V, arithmetic: the rest of softmax)")


def overlap_8_bits(_):
    """The same with products twice as fast."""
    return overlap_16_bits(_, bits=8)


PICTURES = (grids, causal_blocks, warps_of_a_block, overlap_16_bits, overlap_8_bits)
