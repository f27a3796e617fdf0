"""Files that are damaged or attack: each is refused in words, and no program in it runs. The cases are the tests'."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

from promise import Shown

Case = tuple[str, str, Callable[[Path], None]]
"""The kind of file, what is wrong with it, and a check that gets a folder and raises."""


def cases() -> Iterator[Case]:
    """Return every case of the tests."""
    sys.path.append(str(Path(__file__).parents[2]))
    from tests import test_hostile_run
    from tests.report.written import searched
    from tests.tasks import test_broken_data, test_hostile_files

    for data, (kinds, _) in test_broken_data.CASES.items():
        for kind in kinds:
            yield data, kind, partial(test_broken_data.check_case, data, kind)
    for kind in test_hostile_files.FILES:
        yield "weights", kind, partial(test_hostile_files.check_file, kind)

    def check_beside(kind: str, folder: Path) -> None:
        test_hostile_run.check_beside(kind, searched(folder / "run"))

    for kind in test_hostile_run.BESIDE:
        yield "file beside a run", kind, partial(check_beside, kind)


def hostile_files(folder: Path, most: int, kinds: Collection[str] = ()) -> Shown:
    """Read every hostile file, or so many of each kind.

    Args:
        kinds: Of files; all when empty.
    """
    tried, violations = Counter[str](), []
    for number, (data, kind, check) in enumerate(cases()):
        if tried[data] >= most or (kinds and data not in kinds):
            continue
        tried[data] += 1
        place = folder / str(number)
        place.mkdir()
        try:
            check(place)
        except KeyboardInterrupt:
            raise
        # A check that fails may say so with an exception of pytest's own, which is no Exception.
        except BaseException as error:
            violations.append(f"{data}, {kind}: {type(error).__name__}: {str(error)[:300]}")
    return Shown(
        promise="a hostile file is refused in words and runs nothing",
        trials=tried.total(),
        violations=tuple(violations),
        more={"kinds": dict(tried)},
    )
