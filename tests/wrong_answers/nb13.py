"""Wrong answers to notebook 13; each must be rejected."""

import numpy as np


def rows_and_chunks(chunks):
    return np.arange(8)[:, None], np.arange(chunks)[None, :]


def places__one_after_another(chunks):
    r, c = rows_and_chunks(chunks)
    return c + 0 * r


def places__only_for_rows_of_eight(chunks):
    r, c = rows_and_chunks(chunks)
    return (c + r) % chunks


def places__every_other_row(chunks):
    r, c = rows_and_chunks(chunks)
    return c ^ r // 2 % chunks


def places__one_place_for_all(chunks):
    r, c = rows_and_chunks(chunks)
    return 0 * r + 0 * c
