"""The rewrite rules: for each kind of node the steps that may make it shorter or bring it into one form.

A rule looks at one node whose parts are already simple and proposes another term, or nothing. It holds for the operators' real
meaning, ε included, wherever its condition on ranges does; `Rewriter` checks each step by numbers as well before it takes it.
"""

from __future__ import annotations

from collections.abc import Mapping

from autoloss.formulas.rules import calls, products, sums
from autoloss.formulas.rules.facts import Rule, constant
from autoloss.formulas.terms import Term

SUM_RULES: tuple[Rule, ...] = (
    sums.flat_sum,
    sums.like_terms,
    sums.merged_means,
    sums.common_number,
    sums.common_factor,
    sums.merged_logs,
)
PRODUCT_RULES: tuple[Rule, ...] = (
    products.flat_product,
    products.like_factors,
    products.cancelled,
    products.merged_exponentials,
    products.merged_magnitudes,
    products.merged_roots,
    products.distributed_number,
    products.common_minus,
)
POWER_RULES: tuple[Rule, ...] = (
    constant,
    products.power_of_power,
    products.power_of_multiple,
    products.power_of_binary,
    products.even_power,
    products.power_of_root,
)
CALL_RULES: Mapping[str, tuple[Rule, ...]] = {
    "abs": (constant, calls.absolute_value, calls.absolute_of_product),
    "inv": (
        constant,
        calls.inverse_of_inverse,
        calls.inverse_of_multiple,
        calls.inverse_of_minus,
        calls.inverse_of_product,
        calls.inverse_of_exponential,
    ),
    "log": (constant, calls.odd, calls.logarithm_of_exponential),
    "exp": (constant, calls.exponential_of_logarithm),
    "tanh": (constant, calls.odd),
    "sqrt": (constant, calls.odd, calls.of_binary, calls.root_of_square),
    "mean_nhw": (calls.mean_of_equals, calls.linear_mean),
    "mean_c": (calls.mean_of_equals, calls.linear_mean),
    "max_pool": (calls.pool_of_equals, calls.pool_of_multiple, calls.pool_of_sum),
    "min_pool": (calls.pool_of_equals, calls.pool_of_multiple, calls.pool_of_sum),
}


def rules_for(term: Term) -> tuple[Rule, ...]:
    """Return the rules of a node; none for leaves, numbers and operators of the user."""
    match term.head:
        case "sum":
            return SUM_RULES
        case "product":
            return PRODUCT_RULES
        case "power":
            return POWER_RULES
        case "call" if term.operator is not None and term.is_call(term.operator.name):
            return CALL_RULES.get(term.operator.name, ())
        case _:
            return ()
