"""Text → tree: infix means what it says, and whatever is wrong is named with a caret under it."""

import pickle
import re
import string
from fractions import Fraction
from random import Random

import numpy as np
import pytest
import torch

from autoloss.formulas.simplify import simplify
from autoloss.proposing.initialization import initial_expression
from autoloss.space.branch import Role
from autoloss.space.expression import Alphabet
from autoloss.space.operators import OPERATORS, Operator
from autoloss.space.parsing import (
    MAXIMUM_CHARACTERS,
    MAXIMUM_DEPTH,
    MAXIMUM_EXPONENT,
    MAXIMUM_NODES,
    MAXIMUM_NUMBER,
    FormulaError,
    parse,
)


def value(text, **leaves):
    """Evaluate a formula at single numbers, in float64."""
    tensors = {name: torch.tensor(number, dtype=torch.float64).reshape(1, 1, 1, 1) for name, number in leaves.items()}
    return parse(text).evaluate(tensors or {"p": torch.zeros(1, 1, 1, 1, dtype=torch.float64)}).item()


INFIX = [
    ("p", "p"),
    ("1", "1"),
    (" p\n+\ty ", "add(p, y)"),
    ("-y * log(p)", "neg(mul(y, log(p)))"),
    ("-(y * log(p))", "neg(mul(y, log(p)))"),
    ("(-y) * log(p)", "mul(neg(y), log(p))"),
    ("neg(mul(y, log(p)))", "neg(mul(y, log(p)))"),
    ("neg(y * log(p))", "neg(mul(y, log(p)))"),
    ("y - p", "add(y, neg(p))"),
    ("y - p - 1", "add(add(y, neg(p)), neg(1))"),
    ("y + p * p", "add(y, mul(p, p))"),
    ("(y + p) * p", "mul(add(y, p), p)"),
    ("y * p / y", "mul(mul(y, p), inv(y))"),
    ("y / p * y", "mul(mul(y, inv(p)), y)"),
    ("y * -p", "mul(y, neg(p))"),
    ("y / -p", "mul(y, inv(neg(p)))"),
    ("y - -p", "add(y, neg(neg(p)))"),
    ("--p", "neg(neg(p))"),
    ("1 / p", "inv(p)"),
    ("y / p", "mul(y, inv(p))"),
    ("y / p / p", "mul(mul(y, inv(p)), inv(p))"),
    ("p ** 1", "p"),
    ("p ** 2", "square(p)"),
    ("p ** 3", "mul(square(p), p)"),
    ("p ** 4", "square(square(p))"),
    ("p ** 0.5", "sqrt(p)"),
    ("p ** -1", "inv(p)"),
    ("p ** -2", "inv(square(p))"),
    ("-p ** 2", "neg(square(p))"),
    ("(-p) ** 2", "square(neg(p))"),
    ("y * p ** 2", "mul(y, square(p))"),
    ("2 * y", "add(y, y)"),
    ("2 * log(y)", "mul(add(1, 1), log(y))"),
    ("1 * y", "y"),
    ("y / 1", "y"),
    ("y / 2", "mul(inv(add(1, 1)), y)"),
    ("0.5 * y", "mul(inv(add(1, 1)), y)"),
    ("2", "add(1, 1)"),
    ("3", "add(add(1, 1), 1)"),
    ("4", "square(add(1, 1))"),
    ("1 + 1", "add(1, 1)"),
    ("-1", "neg(1)"),
    ("0", "add(1, neg(1))"),
    ("2 ** 3 - 2 * 3", "add(1, 1)"),
    ("2 ** -1", "inv(add(1, 1))"),
    ("abs(p - y)", "abs(add(p, neg(y)))"),
    ("add(p, -y)", "add(p, neg(y))"),
    ("e / (i + u)", "mul(e, inv(add(i, u)))"),
]


@pytest.mark.parametrize(("text", "prefix"), INFIX, ids=[case[0] for case in INFIX])
def test_infix_becomes_this_tree(text, prefix):
    assert str(parse(text)) == prefix
    assert parse(prefix) == parse(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 - 2 - 3", -4),
        ("2 - 3 * 4", -10),
        ("8 / 2 / 2", 2),
        ("-2 ** 2", -4),
        ("2 * p + 1", 1.6),
        ("1 - p", 0.7),
        ("p ** 5", 0.3**5),
        ("p ** 7", 0.3**7),
        ("p ** 64", 0.3**64),
        ("p ** -3", 0.3**-3),
        ("(p ** 0.5) ** 2", 0.3),
        ("6 / p * 2", 40),
        ("-p / 2", -0.15),
        ("p - 1 / 4", 0.05),
    ],
)
def test_precedence_is_that_of_arithmetic(text, expected):
    assert value(text, p=0.3) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    "number",
    [
        "0",
        "1",
        "2",
        "3",
        "5",
        "7",
        "10",
        "31",
        "97",
        "255",
        "1000",
        "999983",
        "1000000",
        "0.5",
        "0.1",
        "3.14",
        "1/3",
        "-4",
    ],
)
def test_numbers_are_trees_over_the_constant_one(number):
    tree = parse(number)
    assert tree.leaves == {"1"}
    assert value(number) == pytest.approx(float(Fraction(number)), rel=1e-9, abs=1e-12)
    assert len(tree.symbols) < 120


# Appendix B, each formula transcribed into NumPy by hand; y is 0 or 1, p in (0, 1).
def dilated(x):
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    height, width = x.shape[2:]
    return np.max(
        [wide[:, :, row : row + height, column : column + width] for row in range(3) for column in range(3)], axis=0
    )


def log(x):
    return np.where(x == 0, 0, np.sign(x) * np.log(np.abs(x) + 1e-12))


def over_positions(x):
    return x.mean(axis=(0, 2, 3), keepdims=True) * np.ones_like(x)


PUBLISHED = {
    "-1/2 * log(tanh(y / (1 + y) * sqrt(p)) * (p**2 + y))": lambda y, p: (
        -0.5 * log(np.tanh(y / (1 + y) * np.sqrt(p)) * (p**2 + y))
    ),
    "log(y * log(y + (y + p) / p))": lambda y, p: log(y * log(y + (y + p) / p)),
    "exp((y - sqrt(p))**2)": lambda y, p: np.exp((y - np.sqrt(p)) ** 2),
    "tanh(sqrt(mean_nhw(-log(p) * sqrt(max_pool(sqrt(2 * y))))))": lambda y, p: np.tanh(
        np.sqrt(over_positions(-log(p) * np.sqrt(dilated(np.sqrt(2 * y)))))
    ),
    "-log(p**3 * y * sqrt(-min_pool(-p)) * exp((p * exp(p))**2))": lambda y, p: (
        -log(p**3 * y * np.sqrt(dilated(p)) * np.exp((p * np.exp(p)) ** 2))
    ),
    "exp(mean_nhw(-max_pool(y) * log(max_pool(p))) + tanh(mean_nhw(2 * p + 1)))": lambda y, p: np.exp(
        over_positions(-dilated(y) * log(dilated(p))) + np.tanh(over_positions(2 * p + 1))
    ),
    "exp(tanh(y)) / p": lambda y, p: np.exp(np.tanh(y)) / p,
    "-y * log(p)": lambda y, p: -y * log(p),
    "-y * p / tanh(p)": lambda y, p: -y * p / np.tanh(p),
    "abs(log(y * p))": lambda y, p: abs(log(y * p)),
    "(p - 16 * y**4)**2 + p**4": lambda y, p: (p - 16 * y**4) ** 2 + p**4,
}
BOXES = {
    "e / (i + u)": lambda i, u, e: e / (i + u),
    "-log(i / e)": lambda i, u, e: -log(i / e),
    "-sqrt(i) / sqrt(e)": lambda i, u, e: -np.sqrt(i) / np.sqrt(e),
}


@pytest.mark.parametrize("text", PUBLISHED)
def test_published_formulas_agree_with_their_transcription(text):
    generator = np.random.default_rng(1)
    p = generator.random((2, 3, 6, 5))
    p /= p.sum(axis=1, keepdims=True)
    y = (generator.random(p.shape) < 0.4).astype(float)
    found = parse(text).evaluate({"y": torch.from_numpy(y), "p": torch.from_numpy(p)})
    np.testing.assert_allclose(found.numpy(), PUBLISHED[text](y, p), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("text", BOXES)
def test_published_box_formulas_agree_with_their_transcription(text):
    generator = np.random.default_rng(1)
    i, u, e = np.array([20, 50, 120.0]).reshape(3, 1, 1, 1, 1) * (1 + generator.random((3, 7, 1, 1, 1)))
    # Boxes that do not meet: nothing in common.
    i[0] = 0
    found = parse(text).evaluate({name: torch.from_numpy(area) for name, area in (("i", i), ("u", u), ("e", e))})
    np.testing.assert_allclose(found.numpy(), BOXES[text](i, u, e), rtol=1e-8, atol=1e-8)


# Text, the position of the caret, and what the message says.
FAULTS = [
    ("", 0, "found nothing"),
    ("   ", 3, "found nothing"),
    ("y *", 3, "found 'the end'"),
    ("y * q", 4, "no leaf named 'q'"),
    ("y * lgo(p)", 4, "no operator named 'lgo'. Did you mean 'log'?"),
    ("maxpool(p)", 0, "Did you mean 'max_pool'?"),
    ("-y * log p", 5, "'log' needs its operands in parentheses"),
    ("y p", 2, "expected an operator or the end, found 'p'"),
    ("y)", 1, "found ')'"),
    ("(y", 2, "expected ')', found 'the end'"),
    ("log(y", 5, "expected ')', found 'the end'"),
    ("log()", 4, "found ')'"),
    ("log(y, p)", 0, "log takes 1 operand; found 2"),
    ("y + add(p)", 4, "add takes 2 operands; found 1"),
    ("y(p)", 0, "no operator named 'y'"),
    ("y ^ 2", 2, "unexpected character '^'"),
    ("y + $", 4, "unexpected character '$'"),
    ("y \u00a0+ p", 2, "unexpected character"),
    ("ŷ", 0, "unexpected character"),
    ("y ** 2.5", 5, "expected an exponent"),
    ("y ** 0", 5, "expected an exponent"),
    ("y ** p", 5, "expected an exponent"),
    ("y ** 65", 5, f"from 1 to {MAXIMUM_EXPONENT}"),
    ("y ** 2 ** 3", 7, "found '**'"),
    ("y / 0", 2, "division by zero"),
    ("y / (1 - 1)", 2, "division by zero"),
    ("0 ** -1", 5, "division by zero"),
    ("1.5.5", 3, "unexpected character '.'"),
    ("1e3", 1, "found 'e3'"),
    ("1000001", 0, f"to {MAXIMUM_NUMBER}"),
    ("0.0000001", 0, f"1/{MAXIMUM_NUMBER}"),
    ("9" * 5000, 0, "at most 100 digits"),
    ("y + 1000 ** 3", 12, f"to {MAXIMUM_NUMBER}"),
    ("999999" + " * 999999" * 1000, 7, f"to {MAXIMUM_NUMBER}"),
    (" + ".join(f"1/{prime}" for prime in (9973, 9967, 9949)), 7, f"1/{MAXIMUM_NUMBER}"),
    ("__import__('os')", 11, "unexpected character"),
    ("__import__(y)", 0, "no operator named '__import__'"),
    ("p.shape", 1, "unexpected character '.'"),
]


@pytest.mark.parametrize(("text", "position", "problem"), FAULTS, ids=[repr(case[0][:20]) for case in FAULTS])
def test_a_fault_is_named_with_a_caret_under_it(text, position, problem):
    with pytest.raises(FormulaError) as caught:
        parse(text)
    message, excerpt, caret = str(caught.value).split("\n")
    assert problem in message
    assert caught.value.position == position
    column = caret.index("^")
    assert caret.strip() == "^"
    assert excerpt[column : column + 1].strip() == text[position : position + 1].strip()


def test_leaves_are_those_of_the_branch():
    with pytest.raises(FormulaError, match=r"no leaf named 'i'.*Known: y, p, 1"):
        parse("i + y", leaves=["y", "p"])
    assert str(parse("depth - y", leaves=["depth", "y"])) == "add(depth, neg(y))"


def test_operators_may_be_ones_own_or_switched_off():
    cube = Operator("cube", 1, lambda x: x**3, r"\left({0}\right)^3")
    assert parse("cube(p)", operators={**OPERATORS, "cube": cube}).root == cube
    with pytest.raises(FormulaError, match="'neg', which is switched off"):
        parse("-p", operators={name: row for name, row in OPERATORS.items() if name != "neg"})


def test_a_formula_error_survives_the_trip_between_processes():
    with pytest.raises(FormulaError) as caught:
        parse("y * q")
    copied = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
    assert (str(copied), copied.position) == (str(caught.value), 4)


def test_depth_is_limited():
    inside = MAXIMUM_DEPTH - 1
    assert parse("(" * inside + "p" + ")" * inside) == parse("p")
    for opening, closing in (("(", ")"), ("neg(", ")"), ("-", "")):
        with pytest.raises(FormulaError, match="nested deeper"):
            parse(opening * (MAXIMUM_DEPTH + 1) + "p" + closing * (MAXIMUM_DEPTH + 1))


def test_length_is_limited():
    assert parse("p" + " " * (MAXIMUM_CHARACTERS - 1)) == parse("p")
    with pytest.raises(FormulaError, match="at most 10000 characters"):
        parse("p" * (MAXIMUM_CHARACTERS + 1))


@pytest.mark.parametrize(
    "text",
    ["(" * 20 + "p" + "**63)" * 20, "((((p**63)**63)**63)**63)**63", " + ".join(["p"] * 501), "+".join("p" * 4999)],
)
def test_size_is_limited_before_it_is_built(text):
    with pytest.raises(FormulaError, match=f"more than {MAXIMUM_NODES} nodes"):
        parse(text)


def test_a_power_of_63_is_a_small_tree():
    assert len(parse("p ** 63").symbols) == 16
    assert value("p ** 63", p=0.9) == pytest.approx(0.9**63)


def test_every_tree_of_a_search_parses_back():
    alphabet = Alphabet({"y": Role.TARGET, "p": Role.PREDICTION})
    for seed in range(300):
        tree = initial_expression(alphabet, 3, Random(seed))
        assert parse(str(tree)) == tree


def mutated(text, rng):
    """Damage a text in up to three places."""
    alphabet = string.printable + "**((--//00ypié∞\x00\u2028" + "1" * 5
    characters = list(text)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(characters) + 1)
        match rng.randrange(4):
            case 0:
                characters.insert(place, rng.choice(alphabet))
            case 1 if characters:
                del characters[place - 1]
            case 2:
                characters[place:place] = characters[: rng.randrange(40)] * rng.choice((1, 2, 60))
            case _:
                characters[place : place + 1] = rng.choice((*OPERATORS, "**", "63", "1/3", "((", "--"))
    return "".join(characters)


def test_hostile_text_is_refused_as_a_formula_or_read_and_nothing_else():
    rng = Random(20)
    seeds = [*PUBLISHED, *BOXES, "p ** 63 ** 0.5 / 999999", "neg(mul(y, log(p)))", "0.001 * (y - 1/7) ** -3"]
    read, refused = [], []
    for _ in range(3000):
        text = mutated(rng.choice(seeds), rng)
        try:
            read.append(parse(text))
        except FormulaError as error:
            refused.append((error.position, len(text)))
    assert all(len(tree.symbols) <= MAXIMUM_NODES for tree in read)
    assert all(0 <= position <= length for position, length in refused)
    assert len(read) > 100
    assert len(refused) > 1000


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a" * 1_000_000, "at most 10000 characters"),
        ("(" * 1_000_000, "at most 10000 characters"),
        ("a" * 9_000, "no leaf named 'aaa"),
        ("b" * 9_000 + "(y)", "no operator named 'bbb"),
        ("p " + "a" * 9_000, "found 'aaa"),
        ("p\x00", r"unexpected character '\x00'"),
        ("\x1b[2Jp", r"unexpected character '\x1b'"),
        ("l\u043eg(p)", "U+043E, CYRILLIC SMALL LETTER O); formulas are plain ASCII"),
        ("p\u202e + y", "U+202E, RIGHT-TO-LEFT OVERRIDE"),
        ("\uff11 + p", "U+FF11, FULLWIDTH DIGIT ONE"),
        ("p\ud800", "U+D800"),
        ("p - \u2212y", "U+2212, MINUS SIGN"),
    ],
    ids=lambda value: repr(value[:12]),
)
def test_a_message_is_short_and_plain_whatever_the_text(text, problem):
    with pytest.raises(FormulaError) as caught:
        parse(text)
    message = str(caught.value)
    assert problem in message
    assert len(message) < 600
    assert all(character.isprintable() or character == "\n" for character in message)


@pytest.mark.parametrize(
    ("printed", "text"),
    [
        ("−y·log(p)", "-y * log(p)"),
        ("½·(p − y)²", "1/2 * (p - y)**2"),
        ("√p + √(y·p) − √|p − y|", "sqrt(p) + sqrt(y * p) - sqrt(abs(p - y))"),
        ("||p| − |y|·|log(p)||⁴", "abs(abs(p) - abs(y) * abs(log(p)))**4"),
        ("max₃ₓ₃(p)·mean_NHW(min₃ₓ₃(y)) + mean_C(p)", "max_pool(p) * mean_nhw(min_pool(y)) + mean_c(p)"),
        ("0.351·(y + 1) / p", "0.351 * (y + 1) / p"),
        ("p⁻²", "p**-2"),
    ],
)
def test_a_formula_as_it_is_printed_is_read_back(printed, text):
    assert parse(printed) == parse(text)


def test_every_simplified_formula_is_read_back_as_it_is_printed():
    rng = Random(4)
    alphabet = Alphabet({"y": Role.TARGET, "p": Role.PREDICTION})
    for _ in range(150):
        term = simplify(initial_expression(alphabet, 3, rng))
        # Numbers that are not rational are rounded for readers.
        if not re.search(r"\d\.\d", term.unicode):
            assert parse(term.unicode) == parse(str(term)), term.unicode


@pytest.mark.parametrize("text", ["|p", "p|", "√", "½½", "p²³ₓ", "−", "|·|", "√|p"])
def test_half_a_printed_formula_is_refused(text):
    with pytest.raises(FormulaError):
        parse(text)
