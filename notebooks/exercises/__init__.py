"""The exercises of the notebooks: nbNN.py belongs to notebook NN. Each function takes an answer and gives a Verdict."""
