"""Named wrong answers to the exercises of the notebooks: <exercise>__<what is wrong>."""
