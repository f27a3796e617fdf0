"""The rewrite rules: for each kind of node the steps that may make it shorter or bring it into one form.

A rule looks at one node whose parts are already simple and proposes another term, or nothing. It holds for the operators' real
meaning, ε included, wherever its condition on ranges does; `Rewriter` checks each step by numbers as well before it takes it.
"""

from __future__ import annotations

from collections.abc import Mapping

from autoloss.formulas.rules import calls, products, sums
from autoloss.formulas.rules.facts import Rule, compute_constant
from autoloss.formulas.terms import Term

SUM_RULES: tuple[Rule, ...] = (
    sums.flatten_sum,
    sums.combine_like_terms,
    sums.factor_out_number,
    sums.factor_out_term,
    sums.merge_logarithms,
)
PRODUCT_RULES: tuple[Rule, ...] = (
    products.flatten_product,
    products.combine_like_factors,
    products.distribute_number,
    products.factor_out_minus,
)
POWER_RULES: tuple[Rule, ...] = (
    compute_constant,
    products.merge_powers,
    products.split_power_of_multiple,
    calls.drop_on_binary,
    products.drop_sign_in_even_power,
    products.drop_root_in_even_power,
)
CALL_RULES: Mapping[str, tuple[Rule, ...]] = {
    "abs": (compute_constant, calls.drop_absolute_value, calls.split_absolute_value),
    "inv": (compute_constant, calls.cancel_inverses, calls.split_inverse_of_multiple),
    "log": (compute_constant, calls.move_minus_out, calls.expand_logarithm),
    "exp": (compute_constant,),
    "tanh": (compute_constant, calls.move_minus_out),
    "sqrt": (compute_constant, calls.move_minus_out, calls.drop_on_binary),
    "mean_nhw": (calls.drop_mean, calls.move_out_of_mean),
    "mean_c": (calls.drop_mean, calls.move_out_of_mean),
    "max_pool": (calls.drop_pool, calls.move_factor_out_of_pool),
    "min_pool": (calls.drop_pool, calls.move_factor_out_of_pool),
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
