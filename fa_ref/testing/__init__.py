"""The conformance kit: problems, an oracle, bounds and properties for any implementation of attention.

An implementation is a function fn(problem) -> Result; `adapters` make one of a function with a known signature.

    from fa_ref.testing import Supports, adapters, check, suite

    print(check(*adapters.sdpa(torch.nn.functional.scaled_dot_product_attention)))      # a table
    test_mine = suite(mine, Supports(causal="bottom-right", lse="natural"))             # a pytest test per property

Read in this order: problem, oracle, tolerance, standard_16bit (what is right); recipe, building, layouts, unread,
supports, strategies (which problems); verdict, asking, properties (what must hold); running, report, check (the
runs); adapters, bridge, registry (whose functions).
"""

from fa_ref.testing import adapters
from fa_ref.testing.check import check, replay, suite
from fa_ref.testing.problem import Problem, Result
from fa_ref.testing.properties import PROPERTIES
from fa_ref.testing.recipe import Recipe
from fa_ref.testing.report import Report
from fa_ref.testing.strategies import recipes
from fa_ref.testing.supports import Supports
from fa_ref.testing.verdict import PropertyError

__all__ = ["PROPERTIES", "Problem", "PropertyError", "Recipe", "Report", "Result", "Supports", "adapters", "check",
           "recipes", "replay", "suite"]
