"""A CSV file is read, or refused with the line and the column; the split depends on the table alone."""

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from autoloss import tasks
from autoloss.errors import RequestError
from autoloss.tasks.tabular.rows import Table, add_noise, build_table, impute, split_rows, standardise, subsample
from autoloss.tasks.tabular.table import Faults, _read_header, read_csv

ROWS = [f"{age},{'blue' if age % 2 else 'red'},{'a' if age < 8 else 'b'}" for age in range(20)]


@pytest.fixture
def file(tmp_path: Path):
    def write(*lines: str, raw: bytes | None = None) -> Path:
        path = tmp_path / "people.csv"
        path.write_bytes(raw if raw is not None else "\n".join(lines).encode())
        return path

    return write


def refused(path: Path, target: str = "y", kind="classification", **options) -> str:
    with pytest.raises(RequestError) as caught:
        read_csv(path, target, kind, **options)
    return str(caught.value)


def changed(line: int, text: str) -> list[str]:
    """The file with another text in one line, counted from 1 as the messages do."""
    lines = ["age,color,y", *ROWS]
    lines[line - 1] = text
    return lines


def test_numbers_stay_numbers_text_becomes_one_hot_and_classes_are_sorted(file):
    table = read_csv(file("age,color,y", *ROWS), "y", "classification")
    assert table.columns == ("age", "color=blue", "color=red")
    assert table.classes == ("a", "b")
    assert table.inputs[1].tolist() == [1.0, 1.0, 0.0]
    assert table.target.tolist() == [0] * 8 + [1] * 12


@pytest.mark.parametrize("delimiter", [";", "\t", ", "])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_other_delimiters_line_ends_quotes_blank_lines_and_a_byte_order_mark_are_read(file, delimiter: str, end: str):
    lines = [f'"{x}"{delimiter}"b, c; d"{delimiter}{x % 3}' for x in range(12)]
    raw = end.join([f"x{delimiter}text{delimiter}y", "", *lines, "", ""]).encode("utf-8-sig")
    table = read_csv(file(raw=raw), "y", "classification")
    assert table.columns == ("x", "text=b, c; d")
    assert table.inputs[:, 0].tolist() == list(range(12))
    assert table.classes == ("0", "1", "2")


def test_a_column_can_be_dropped_and_the_positive_class_chosen(file):
    table = read_csv(file("age,color,y", *ROWS), "y", "classification", drop=["color"], positive="a")
    assert table.columns == ("age",)
    assert table.classes == ("b", "a")
    assert table.target.tolist() == [1] * 8 + [0] * 12


def test_values_are_read_for_a_regression(file):
    table = read_csv(file("x,y", *(f"{x},{x / 2}" for x in range(12))), "y", "regression")
    assert table.classes == ()
    assert table.target.tolist() == [x / 2 for x in range(12)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("abc,red,b", "line 17, column 'age': 'abc' is not a finite number"),
        ("inf,red,b", "line 17, column 'age': 'inf' is not a finite number"),
        ("1_000,red,b", "line 17, column 'age': '1_000' is not a finite number"),
        (",red,b", "line 17, column 'age': the value is missing"),
        ("3,NA,b", "line 17, column 'color': the value is missing ('NA')"),
        ("3,red,", "line 17, column 'y': the value is missing"),
        ("3,red", "line 17: 2 values where the header has 3 columns"),
        ("3,red,b,4", "line 17: 4 values where the header has 3 columns"),
    ],
)
def test_a_faulty_row_is_named_by_line_and_column(file, text: str, expected: str):
    message = refused(file(*changed(17, text)))
    assert message.startswith("people.csv cannot be used as it is:")
    assert expected in message


def test_a_line_is_counted_by_line_ends_inside_quotes_too(file):
    lines = changed(3, '1,"red\nor so",a')
    lines[16] = "abc,red,b"
    assert "line 18, column 'age': 'abc'" in refused(file(*lines))


def test_missing_values_are_listed_once_for_each_column(file):
    rows = [f"{'' if at % 2 else at},{'red' if at % 3 else 'n/a'},{'ab'[at % 5 == 0]}" for at in range(30)]
    listed = refused(file("age,color,y", *rows)).splitlines()
    assert listed[1:-1] == [
        "  line 2, column 'color': the value is missing ('n/a')",
        "  line 3, column 'age': the value is missing",
    ]
    assert listed[-1].startswith("Missing values by column: 'age' 15, 'color' 10. --set missing=impute fills them in")


def test_columns_that_were_dropped_stay_in_the_advice_to_drop_more(file):
    notes = file("id,note,y", *(f"{at},text{at},{'ab'[at % 2]}" for at in range(60)))
    assert "--set drop=id,note." in refused(notes, drop=["id"])
    numbers = file("a,b,c,y", *(f"{at},{at},{at},{'ab'[at % 2]}" for at in range(60)))
    assert read_csv(numbers, "y", "classification", drop=["a"]).used["b"].endswith("--set drop=a,b")


def test_what_a_header_does_not_tell_apart_can_be_left_out(file):
    rows = [f"{x},{x},{'ab'[x % 2]},{x % 7}" for x in range(20)]
    for header, drop in ((",x,y,z", "column_1"), ("z,z,y,x", "z")):
        path = file(header, *rows)
        assert f"--set drop={drop}." in refused(path)
        used = read_csv(path, "y", "classification", drop=(drop,)).used
        assert drop not in used
        assert "x" in used


def test_long_numbers_are_told_apart_by_their_digits(file):
    used = read_csv(file("id,y", *(f"{10**25 + x},{'ab'[x % 2]}" for x in range(60))), "y", "classification").used
    assert used["id"].startswith("number, different in each row")


def test_classes_of_long_numbers_are_told_apart(file):
    lines = ["x,y", *(f"{x},{(10**18, 10**18 + 1, 2 * 10**18)[x % 3]}" for x in range(30))]
    assert read_csv(file(*lines), "y", "classification").classes == tuple(map(str, (10**18, 10**18 + 1, 2 * 10**18)))
    assert read_csv(file(*lines), "y", "regression").target[2] == 2e18


def test_a_column_may_have_the_name_of_a_category_of_another(file):
    lines = ["a,a=u,a: missing,y", *(f"{('u', 'v', '')[at % 3]},{at},{-at},{'ab'[at % 2]}" for at in range(30))]
    found = read_csv(file(*lines), "y", "classification", missing="impute")
    assert found.columns == ("a=u", "a=v", "a: missing", "a=u", "a: missing")
    assert found.inputs[:, 3].tolist() == [*range(30)]
    assert found.inputs[3].tolist() == [1, 0, 0, 3, -3]


def test_numbers_that_differ_in_each_row_may_be_identifiers(file):
    rows = [f"{1000 + at},{at % 7},{at / 8},{'ab'[at % 2]}" for at in range(60)]
    used = read_csv(file("customer_id,age,size,y", *rows), "y", "classification").used
    assert used == {
        "customer_id": "number, different in each row; if it is an identifier: --set drop=customer_id",
        "age": "number",
        "size": "number",
    }
    message = refused(file("customer_id,joined,y", *(f"{at},{at},{'ab'[at % 2]}" for at in range(20))), drop=["id"])
    assert "named 'id'. Did you mean 'customer_id'?" in message


def test_a_table_says_which_columns_are_constant_and_how_many_rows_it_leaves_out(file):
    rows = [f"{at % 7},EUR,1,{'ab'[at % 2] if at % 10 else ''}" for at in range(60)]
    read = read_csv(file("age,currency,one,y", *rows), "y", "classification", missing="impute").describe(
        "people.csv", "y"
    )
    assert read.startswith("Read people.csv: 54 rows, without 6 that lack a value. Target y: a ")
    assert read.endswith("age (number), currency (the same in each row), one (the same in each row).")


def test_up_to_twenty_faults_are_listed_at_once_in_the_order_of_the_lines(file):
    lines = ["age,color,y", *("1,,a" if line in (3, 5) else "1,red" for line in range(2, 30))]
    listed = refused(file(*lines)).splitlines()
    assert len(listed) == 1 + 20 + 1 + 1
    assert listed[2] == "  line 3, column 'color': the value is missing"
    assert listed[-2] == "  and 7 more"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], "people.csv is empty"),
        (["", "  ", ""], "people.csv is empty"),
        (["age,y"], "people.csv holds no rows after its header in line 1"),
        (["1,2,3", "4,5,6"], "people.csv, line 1: only numbers; expected a header"),
        (["x,x,y", "1,2,a"], "line 1, column 'x': the same name is used by columns 1 and 2"),
        (["x,,y", "1,2,a"], "line 1, column 'column_2': the header gives it no name"),
        (["y", *"abab"], "no input column besides 'y'"),
        (["x,yy", "1,a"], "There is no column in people.csv named 'y'. Did you mean 'yy'? Known: x, yy."),
        (["x,y", "1,a", '2,"b', "3,c"], "people.csv, line 3: unexpected end of data"),
        (["x,y", *["1,a"] * 9], "Every row in column 'y' of people.csv (lines 2 to 10) is 'a'"),
        (
            ["x,y", *["1,a"] * 9, "3,b", "4,b"],
            "fewer than 3 rows in column 'y' of people.csv (lines 2 to 12): 'b' in line 11 and 12",
        ),
        (["x,y", *(f"{x},{x / 7}" for x in range(40))], "Found 40 different numbers in column 'y'"),
        (
            ["x,y", *(f"text{x},{x % 2}" for x in range(60))],
            "60 different texts, such as 'text0'; categories have at most 50",
        ),
        (["x,y", *(f"text{x},{x % 2}" for x in range(60))], "leave columns out with --set drop=x."),
        (["x;y", *(f"{x},5;{x % 2}" for x in range(60))], "'0,5'; write numbers with a decimal point"),
        (
            ["x;y", *(f"{x % 3},5;{x % 2}" for x in range(60))],
            "such as '0,5'; write numbers with a decimal point",
        ),
        (
            ["x,y", *(f"{'None' if x % 8 == 0 else x / 4},{x % 2}" for x in range(60))],
            "such as 'None'; write numbers with a decimal point, and leave a missing one empty",
        ),
        (["1,a", *(f"{x},b" for x in range(5))], "Known: 1, a. The first line must hold the names of the columns."),
    ],
)
def test_a_file_that_cannot_be_used_says_why(file, lines: list[str], expected: str):
    assert expected in refused(file(*lines))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["red", "blue", "green"] * 5, "Found text (red, blue, green) in column 'y'"),
        (["0", "1"] * 8, "Two values (0, 1) in column 'y'"),
        (["1", "2", "3.5"], "Found 3 rows in column 'y'"),
    ],
)
def test_a_target_that_is_no_regression_is_refused(file, values: list[str], expected: str):
    message = refused(file("x,y", *(f"{x},{value}" for x, value in enumerate(values))), kind="regression")
    assert expected in message


def test_a_file_that_is_not_utf_8_is_named_by_line_and_byte(file):
    assert "people.csv, line 3: byte 0xe9 is not UTF-8" in refused(file(raw=b"x,y\n1,a\n2,caf\xe9\n"))


@pytest.mark.parametrize(("begin", "found"), [(b"PK\x03\x84", "a workbook or an archive"), (b"\x1f\x8b", "compressed")])
def test_a_workbook_and_a_compressed_file_are_named(file, begin: bytes, found: str):
    assert f"people.csv is {found}. Save the table as CSV" in refused(file(raw=begin))


def test_a_missing_file_an_unknown_positive_class_and_a_missing_target_are_refused(file, tmp_path: Path):
    assert "cannot be read: No such file" in refused(tmp_path / "none.csv")
    path = file("age,color,y", *ROWS)
    assert "There is no class in column 'y'" in refused(path, positive="c")
    assert "--set target=<one of age, color, y>" in refused(path, target=None)  # pyright: ignore[reportArgumentType]


def table_of(counts: list[int]) -> Table:
    labels = [f"c{index}" for index, count in enumerate(counts) for _ in range(count)]
    return build_table(np.arange(len(labels), dtype=float)[:, None], ["x"], labels, "classification")


@pytest.mark.parametrize("counts", [[3, 3], [50, 3], [100, 60, 30], [7, 11, 13, 4]])
def test_the_split_is_disjoint_complete_and_stratified(counts: list[int]):
    table = table_of(counts)
    parts = split_rows(table)
    assert sorted(np.concatenate(parts).tolist()) == list(range(sum(counts)))
    for index, count in enumerate(counts):
        train, valid, test = ((table.target[part] == index).sum() for part in parts)
        assert valid == test == max(1, round(0.2 * count))
        assert train >= 1


def test_the_split_is_the_same_every_time_and_known():
    parts = [part.tolist() for part in split_rows(table_of([6, 6]))]
    assert parts == [part.tolist() for part in split_rows(table_of([6, 6]))]
    assert parts == [[0, 1, 3, 5, 7, 8, 9, 11], [4, 10], [2, 6]]


def test_a_subset_keeps_every_class_in_its_share_and_an_imbalance_thins_the_last():
    table = table_of([100, 100, 40])
    rows = np.arange(240)
    assert np.bincount(table.target[subsample(table, rows, 24, 1.0, 0)]).tolist() == [10, 10, 4]
    assert np.bincount(table.target[subsample(table, rows, 3, 1.0, 0)]).tolist() == [1, 1, 1]
    assert np.bincount(table.target[subsample(table, rows, None, 4.0, 0)]).tolist() == [100, 50, 10]
    assert subsample(table, rows, None, 1.0, 0).tolist() == rows.tolist()
    with pytest.raises(RequestError, match="train_rows is 241; there are 240"):
        subsample(table, rows, 241, 1.0, 0)


def test_label_noise_changes_exactly_its_share_of_the_rows_and_leaves_the_table_alone():
    table = table_of([50, 50, 50])
    before = table.target.copy()
    noisy = add_noise(table, np.arange(150), 0.2, 0)
    assert (noisy != before).sum() == 30
    assert set(noisy.tolist()) == {0, 1, 2}
    assert (table.target == before).all()


def test_inputs_get_mean_0_and_deviation_1_on_the_reference_and_constant_columns_become_0():
    values = np.array([[1.0, 5.0, 1e9], [3.0, 5.0, 1e9], [100.0, 6.0, 1e9]])
    scaled = standardise(values, values[:2])
    assert scaled[:2, 0].tolist() == [-1.0, 1.0]
    assert scaled[2].tolist() == [98.0, 0.0, 0.0]
    assert scaled.dtype == np.float32


def test_a_large_offset_does_not_make_a_column_constant():
    values = np.random.default_rng(0).normal(size=(50, 1))
    scaled = standardise(values, values)
    np.testing.assert_allclose(standardise(values / 4 + 1e9, values / 4 + 1e9), scaled, atol=1e-5)


def test_a_number_too_far_out_is_named():
    values = np.array([[1.0, 2], [3, 4], [5, 1e50]])
    with pytest.raises(RequestError, match=r"1e\+50 standard deviations from the mean .* Correct the outlier"):
        standardise(values, values[:2])


class CountedName(str):
    compared = 0

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        CountedName.compared += 1
        return str.__eq__(self, other)


def test_the_check_of_a_header_does_not_compare_all_names_with_all(file):
    names = [CountedName(f"c{number}") for number in range(1000)]
    faults = Faults(Path("wide.csv"))
    assert _read_header(Path("wide.csv"), (1, [*names]), faults) == tuple(names)
    assert CountedName.compared < 10 * len(names)
    with pytest.raises(RequestError, match="is used by columns 1 and 3"):
        read_csv(file("a,b,a,c\n1,2,3,4\n5,6,7,8\n"), "c", "regression")


GAPS = [f"{'' if at % 4 == 0 else at},2026-01-{at + 1:02},{'NA' if at == 3 else 'red'},{at % 2}" for at in range(24)]
WITH_GAPS = ["age,joined,color,y", *GAPS]


def test_missing_values_are_counted_by_column(file):
    message = refused(file(*WITH_GAPS))
    assert (
        "Missing values by column: 'age' 6, 'color' 1. --set missing=impute fills them in, --set missing=drop drops their rows"
        in message
    )


def test_missing_values_are_imputed_on_request(file):
    table = read_csv(file(*WITH_GAPS), "y", "classification", missing="impute")
    assert len(table.target) == 24
    ages, gone = (table.inputs[:, table.columns.index(name)] for name in ("age", "age: missing"))
    assert np.flatnonzero(np.isnan(ages)).tolist() == np.flatnonzero(gone).tolist() == [0, 4, 8, 12, 16, 20]
    assert table.inputs[3, table.columns.index("color: missing")] == 1
    assert table.inputs[3, table.columns.index("color=red")] == 0
    filled = impute(table.inputs, table.inputs[:8])
    assert filled[0, table.columns.index("age")] == np.median([1, 2, 3, 5, 6, 7])
    assert not np.isnan(filled).any()


def test_rows_with_missing_values_are_dropped_on_request(file):
    table = read_csv(file(*WITH_GAPS), "y", "classification", missing="drop")
    assert len(table.target) == 24 - 7
    assert not np.isnan(table.inputs).any()


@pytest.mark.parametrize("missing", ["impute", "drop"])
def test_rows_without_a_target_are_dropped(file, missing: str):
    table = read_csv(
        file("x,y", *(f"{at},{'' if at == 5 else at % 2}" for at in range(20))), "y", "classification", missing=missing
    )
    assert table.inputs[:, 0].tolist() == [at for at in range(20) if at != 5]


def test_a_file_whose_rows_all_lack_something_says_what(file):
    message = refused(file("x,y", *(f",{at % 2}" for at in range(20))), missing="drop")
    assert "missing values by column: 'x' 20 of 20" in message


@pytest.mark.parametrize("notation", ["%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y-%m-%d %H:%M:%S"])
def test_dates_become_days_and_places_in_year_and_week(file, notation: str):
    days = [datetime(2024, 2, 20, 6) + timedelta(days=at) for at in range(30)]
    table = read_csv(
        file("when,y", *(f"{day.strftime(notation)},{at % 2}" for at, day in enumerate(days))), "y", "classification"
    )
    day = table.inputs[:, table.columns.index("when: day")]
    assert np.diff(day).tolist() == [1.0] * 29
    assert int(day[0]) == (datetime(2024, 2, 20) - datetime(1970, 1, 1)).days
    assert ("when: time, sine" in table.columns) == ("%H" in notation)
    sine, cosine = (table.inputs[:, table.columns.index(f"when: week, {name}")] for name in ("sine", "cosine"))
    np.testing.assert_allclose(sine[7:], sine[:-7], atol=1e-6)
    np.testing.assert_allclose(sine**2 + cosine**2, 1)


def test_dates_that_can_be_read_in_two_ways_and_strange_ones_are_refused(file):
    rows = [f"0{at % 9 + 1}/0{at % 5 + 1}/2024,{at % 2}" for at in range(20)]
    assert "are ambiguous (31/01/2026 or 01/31/2026); write them as 2026-01-31" in refused(file("when,y", *rows))
    rows = [f"2024-01-{at + 1:02},{at % 2}" for at in range(20)]
    assert "'soon' is not a date such as 2026-01-31" in refused(file("when,y", *rows[:-1], "soon,1"))


def test_names_may_hold_commas(file):
    lines = ['"income, yearly";"age; years";y', *(f"{at},5;{at};{at % 2}" for at in range(20))]
    assert read_csv(
        file(*[lines[0], *(line.replace(",", ".") for line in lines[1:])]), "y", "classification"
    ).columns == (
        "income, yearly",
        "age; years",
    )


def test_a_positive_class_of_three_is_refused_and_percent_signs_stay(file):
    path = file("x,y", *(f"{x},{['5.0%', '6 %', '7%'][x % 3]}" for x in range(30)))
    assert "5.0% 33.3 %" in read_csv(path, "y", "classification").describe("a.csv", "y")
    assert "has 3 classes. Remove it" in refused(path, positive="7%")


def test_names_may_hold_line_breaks(file):
    lines = ['"income,\nyearly";"age; years";y', *(f"{at}.5;{at};{at % 2}" for at in range(20))]
    assert read_csv(file(*lines), "y", "classification").columns == ("income,\nyearly", "age; years")


def test_what_was_read_is_said_with_each_column_and_the_shares_of_the_classes(file):
    rows = [f"{k},{'grün' if k % 2 else 'rot'},2024-01-{k + 1:02d},{'ja' if k % 4 else 'nein'}" for k in range(12)]
    path = file("visits,colour,joined,churned", *rows)
    task = tasks.get("tabular", data=str(path), target="churned", metric="f1", positive="nein")
    first, second = task.choices()[:2]
    assert first == (
        f"Read {path.name}: 12 rows. Target churned: ja 75 %, nein 25 % (positive class; to change it: positive=ja). "
        "Inputs: visits (number), colour (2 categories), joined (date)."
    )
    assert second.startswith("Data: 6 train, 3 valid, 3 test examples, inputs of size 8; 2 classes in train")
