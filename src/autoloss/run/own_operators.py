"""A person's own operators by reference: `file.py:name`, so that a run finds them again when it is resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoloss.errors import RequestError
from autoloss.run.naming import absolute, from_file
from autoloss.space.operators import Operator
from autoloss.space.own_operators import table


def operator_references(operators: Sequence[Operator | str]) -> tuple[str, ...]:
    """Return what a run keeps of its operators: `file.py:name` with the full path, or the name of one given as an object."""
    return tuple(found.name if isinstance(found, Operator) else absolute(found) for found in operators)


def operator_table(operators: Sequence[Operator | str], given: Sequence[Operator] = ()) -> Mapping[str, Operator]:
    """Return Table 1 with the operators of a run behind it, by name.

    Args:
        operators: Objects, `file.py:name` of an operator or of several, or names of those that are given.
        given: Objects that stand for the names.

    Raises:
        RequestError: A file or a name is not there, an object must be given, or an operator cannot be used.
    """
    objects = {operator.name: operator for operator in given}
    if strange := [name for name in objects if name not in operators]:
        raise RequestError(f"This run has no operators named {', '.join(strange)}; leave them out.")
    own: list[Operator] = []
    for found in operators:
        if isinstance(found, Operator):
            own.append(found)
        elif ".py:" in found:
            own += _of_file(found)
        elif found in objects:
            own.append(objects[found])
        else:
            raise RequestError(
                f"The operator {found!r} of this run was handed over in Python; give it again, as in "
                "autoloss.resume(directory, operators=[…])."
            )
    return table(own)


def _of_file(name: str) -> list[Operator]:
    found = from_file(name, "operator")
    several = list(found) if isinstance(found, list | tuple) else [found]
    if not several or not all(isinstance(operator, Operator) for operator in several):
        raise RequestError(
            f"{name} is a {type(found).__name__}; expected an autoloss.Operator(name, arity, function), or a list of them."
        )
    return several
