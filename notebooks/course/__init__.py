"""What all notebooks of the course share: check an answer, draw a matrix in tiles, show a part of a source file.

    checking.py     run a learner's function on cases, smallest first; a Verdict says ok, or what is wrong where
    comparing.py    compare the arrays that came back with the right ones, element by element
    attention.py    attention problems of one head, smallest first, with truth and error bounds
    pictures.py     matrices with their tiles, the first wrong tile, pictures with a text for who cannot see them
    sources.py      the source of a function, whole or from one numbered step to another

The exercises of notebook NN are in `exercises/nbNN.py` (beside them what several share), answers to them in
`solutions/nbNN.py`.
"""

from course.pictures import matrix, show
from course.sources import source, steps

__all__ = ["matrix", "show", "source", "steps"]
