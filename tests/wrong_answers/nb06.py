"""Wrong answers to notebook 06; each must be rejected."""

import numpy as np


def tile_kind__top_left(rows, cols, Nq, Nk):
    return "empty" if cols.start > rows.stop - 1 else "full" if cols.stop - 1 <= rows.start else "partial"


def tile_kind__off_by_one_at_the_far_corner(rows, cols, Nq, Nk):
    p_first, p_last = rows.start + Nk - Nq, rows.stop + Nk - Nq
    return "empty" if cols.start > p_last else "full" if cols.stop - 1 <= p_first else "partial"


def tile_kind__full_where_the_diagonal_begins(rows, cols, Nq, Nk):
    p_first, p_last = rows.start + Nk - Nq, rows.stop - 1 + Nk - Nq
    return "empty" if cols.start > p_last else "full" if cols.start <= p_first else "partial"


def tile_kind__partial_although_the_diagonal_only_touches(rows, cols, Nq, Nk):
    p_first, p_last = rows.start + Nk - Nq, rows.stop - 1 + Nk - Nq
    return "empty" if cols.start > p_last else "full" if cols.stop - 1 < p_first else "partial"


def tile_kind__never_skips(rows, cols, Nq, Nk):
    return "full" if cols.stop - 1 <= rows.start + Nk - Nq else "partial"


def first_and_last_tile__negative_first(i, Br, Bc, Nq, Nk, left, right):
    p = i * Br + Nk - Nq
    p_last = min(i * Br + Br, Nq) - 1 + Nk - Nq
    first = 0 if left < 0 else (p - left) // Bc
    return first, (Nk - 1 if right < 0 else min(p_last + right, Nk - 1)) // Bc


def first_and_last_tile__right_from_the_first_query(i, Br, Bc, Nq, Nk, left, right):
    p = i * Br + Nk - Nq
    return (0 if left < 0 else max(0, p - left) // Bc), (Nk - 1 if right < 0 else min(p + right, Nk - 1)) // Bc


def first_and_last_tile__minus_one_taken_for_a_number(i, Br, Bc, Nq, Nk, left, right):
    p, p_last = i * Br + Nk - Nq, min(i * Br + Br, Nq) - 1 + Nk - Nq
    return max(0, p - left) // Bc, min(p_last + right, Nk - 1) // Bc


def first_and_last_tile__last_is_a_stop(i, Br, Bc, Nq, Nk, left, right):
    p, p_last = i * Br + Nk - Nq, min(i * Br + Br, Nq) - 1 + Nk - Nq
    first = 0 if left < 0 else max(0, p - left) // Bc
    return first, -(-(Nk if right < 0 else min(p_last + right + 1, Nk)) // Bc)


def first_and_last_tile__positions_without_the_offset(i, Br, Bc, Nq, Nk, left, right):
    p, p_last = i * Br, min(i * Br + Br, Nq) - 1
    first = 0 if left < 0 else max(0, p - left) // Bc
    return first, (Nk - 1 if right < 0 else min(p_last + right, Nk - 1)) // Bc


def first_and_last_tile__truncated_towards_zero(i, Br, Bc, Nq, Nk, left, right):
    p, p_last = i * Br + Nk - Nq, min(i * Br + Br, Nq) - 1 + Nk - Nq
    first = 0 if left < 0 else max(0, p - left) // Bc
    return first, int((Nk - 1 if right < 0 else min(p_last + right, Nk - 1)) / Bc)


def case3_witness__a_problem_that_is_right():
    return "Nq=2 Nk=12", "Nq=2 Nk=16", "Nq=2 Nk=12 causal=True"


def case3_witness__the_other_length_is_ragged_too():
    return "Nq=2 Nk=10", "Nq=2 Nk=13", "Nq=2 Nk=10 causal=True"


def case3_witness__two_things_changed():
    return "Nq=2 Nk=10", "Nq=4 Nk=12", "Nq=2 Nk=10 causal=True"


def case3_witness__a_window_that_hides_nothing():
    return "Nq=2 Nk=10", "Nq=2 Nk=12", "Nq=2 Nk=10 window=12,12"


def case3_witness__blames_the_queries():
    return "Nq=3 Nk=12", "Nq=3 Nk=11", "Nq=3 Nk=12 causal=True"


def case3_witness__the_plainest_problem_of_all():
    return "seed=0", "Nk=4", "causal=True"


def case3_repair__hides_in_every_tile():
    return "whole", lambda i0, j0, Br, Bc, edges: False


def case3_repair__looks_at_the_queries():
    def whole(i0, j0, Br, Bc, edges):
        p = i0 + edges.Nk - edges.Nq
        return i0 + Br <= edges.Nq and p + Br - 1 - edges.left <= j0 and j0 + Bc - 1 <= p + edges.right
    return "whole", whole


def case3_repair__hides_in_the_last_whole_tile_too():
    def whole(i0, j0, Br, Bc, edges):
        p = i0 + edges.Nk - edges.Nq
        return p + Br - 1 - edges.left <= j0 and j0 + Bc - 1 <= p + edges.right and j0 + Bc < edges.Nk
    return "whole", whole


def case3_repair__hides_in_ragged_tiles_of_queries_too():
    def whole(i0, j0, Br, Bc, edges):
        p = i0 + edges.Nk - edges.Nq
        return (i0 + Br <= edges.Nq and p + Br - 1 - edges.left <= j0
                and j0 + Bc <= min(p + edges.right + 1, edges.Nk))
    return "whole", whole


def case3_repair__one_key_too_many():
    def whole(i0, j0, Br, Bc, edges):
        p = i0 + edges.Nk - edges.Nq
        return p + Br - 1 - edges.left <= j0 and j0 + Bc - 1 <= min(p + edges.right, edges.Nk)
    return "whole", whole


def case3_repair__pads_with_nan():
    def load(X, start, size):
        tile = np.full((size, X.shape[1]), np.nan, np.float32)
        part = X[start:start + size]
        tile[:len(part)] = part
        return tile
    return "load", load


def case3_repair__mends_what_was_right():
    def visible(i0, j0, Br, Bc, edges):
        p, j = np.arange(i0, i0 + Br)[:, None] + edges.Nk - edges.Nq, np.arange(j0, j0 + Bc)
        return (p - edges.left <= j) & (j <= np.minimum(p + edges.right, edges.Nk - 1))
    return "visible", visible
