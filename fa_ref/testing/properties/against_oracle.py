"""The answer is the oracle's: what is right, asked of every element."""

from fa_ref.testing import oracle
from fa_ref.testing.asking import asks
from fa_ref.testing.verdict import agree, allowed, ask


@asks(without=["gradients"])
def equals_the_oracle(fn, recipe, supports):
    """out (and lse) are the oracle's, within the bound of every element."""
    against_the_oracle(fn, recipe, supports)


@asks("gradients", always=["gradients"])
def gradients_equal_the_oracles(fn, recipe, supports):
    """The gradients for a random dout (and dlse) are the oracle's, within the bound of every element."""
    against_the_oracle(fn, recipe, supports)


def against_the_oracle(fn, recipe, supports):
    """The truth is found before fn is called: it may write to its inputs."""
    problem = recipe.build()
    truth, bound = oracle.solve(problem), allowed(problem, supports)
    agree(ask(fn, problem, recipe, supports), truth, bound, problem, recipe)
