"""Writes docs/results.md from bench/results/: every number on that page is looked up here, none is typed.

python docs/results.py          writes the page
python docs/results.py --check  ends with 1 where the page is another one
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
RESULTS, PAGE = HERE.parent / "bench" / "results", HERE / "results.md"
TEMPLATE = HERE / "results_template.txt"
LOSSES = 8
"""Losses that a rank correlation is of, at least."""


def main(argv: Sequence[str] | None = None) -> None:
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--check", action="store_true", help="compare the page with the results instead of writing it")
    arguments = asked.parse_args(argv)
    text = render()
    if not arguments.check:
        PAGE.write_text(text, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != text:
        raise SystemExit("docs/results.md differs from bench/results/. Write it again: python docs/results.py")


def render() -> str:
    """Return the page: the template with the values in place of their names."""
    return TEMPLATE.read_text(encoding="utf-8").format_map(collect_values())


def collect_values() -> dict[str, str]:
    """Return name in the template → text."""
    parts = (_list_away, _list_calibration, _list_engine, _list_border, _list_failures)
    values = {name: text for part in parts for name, text in part().items()}
    for name, part in (("audit", _list_audit), ("ablation", _list_ablation), ("transfer", _list_transfer)):
        if (RESULTS / f"{name}.json").exists():
            values |= part()
    return _Values(values)


class _Values(dict[str, str]):
    def __missing__(self, name: str) -> str:
        # Of a script that was not run yet.
        return "–"


def _read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def _list_away() -> dict[str, str]:
    away = _read("away")
    gate = away["gate"]
    first, summary, third = (
        next(one for one in away["summary"] if (one["arm"], one["part"]) == ("default", part))
        for part in ("exam", "second exam", "third exam")
    )
    rows = [row for row in away["rows"] if (row["arm"], row["part"]) == ("default", "second exam")]
    shares = ("at_or_above_standard", "at_or_above_ladder", "below_standard", "ahead_of_ladder")
    return {
        "away_tasks": str(len(gate)),
        "away_shelf_ahead": str(sum(one["shelf_ahead"] for one in away["gate_summary"])),
        "away_ladder_ahead": str(sum(row["ladder"] > row["standard"] for row in gate)),
        "away_searches": str(summary["searches"]),
        "away_at_standard": _percent(summary["at_or_above_standard"]),
        "away_at_ladder": _percent(summary["at_or_above_ladder"]),
        "away_below": _percent(summary["below_standard"]),
        "away_ahead_of_ladder": _percent(summary["ahead_of_ladder"]),
        "away_headroom": f"{summary['share_of_headroom']:.2f}",
        "away_found": str([row["origin"] for row in rows].count("found")),
        "away_first": ", ".join(_percent(first[share]) for share in shares),
        "away_third": ", ".join(_percent(third[share]) for share in shares),
        "away_table": _write_table(
            ("task", "metric", "tuned rate", "ladder's best", "known losses' best", "p"),
            [
                (
                    row["task"],
                    row["metric"],
                    *(_write_score(row[key]) for key in ("standard", "ladder", "shelf")),
                    f"{row['p']:.2g}",
                )
                for row in sorted(gate, key=lambda row: -row["in_errors"])[:5]
            ],
        ),
    }


def _list_calibration() -> dict[str, str]:
    found = _read("calibration")
    planted = {f"{one['gain']:g}": one for one in found["planted"]}
    return {
        "nulls": str(found["nulls"]),
        "false_better": str(found["false_better"]),
        "upper95": _percent(found["upper95"], 1),
        "one_sd": _write_share(planted["1"]["found"], planted["1"]["trials"]),
        "two_sd": _write_share(planted["2"]["found"], planted["2"]["trials"]),
    }


def _list_engine() -> dict[str, str]:
    rejection, agreement, faults = _read("rejection"), _read("agreement"), _read("faults")["promises"]
    criterion, on_gpu = ({row["name"]: row for row in _read(name)["rows"]} for name in ("criterion", "criterion_gpu"))
    hours = [row["hours"] for row in _read("proxies")["rows"] if row["loss"] == "published"]
    return {
        "ratio": f"{rejection['ratio']:.0f}",
        "accepts": str(agreement["reference_accepts"]),
        "false_accepts": str(agreement["false_accepts"]),
        "false_rejects": str(agreement["false_rejects"]),
        "criterion_ce": f"{criterion['baseline/ce']['ratio_compiled']:.2f}",
        "gpu_ce": f"{on_gpu['baseline/ce']['ratio_compiled']:.2f}",
        "proxy_least": f"{60 * min(hours):.1f}",
        "proxy_most": f"{60 * max(hours):.0f}",
        "faults": str(len(faults)),
        "fault_trials": f"{sum(one['trials'] for one in faults):,}",
        "lost": str(sum(one["lost"] for one in faults)),
    }


def _list_border() -> dict[str, str]:
    search = _read("digits_bf1")["searches"][0]
    means = {row["loss"]: row for row in search["comparison"]}
    found, known = means[search["winner"]], means[search["recommendation"]["loss"]]
    dice, ce = means["baseline/dice"], means["baseline/ce"]
    return {
        "border_found": f"{found['mean']:.4f}",
        "border_dice": f"{dice['mean']:.4f}",
        "border_known": f"{known['mean']:.4f}",
        "border_name": known["loss"],
        "border_ce": f"{ce['mean']:.4f}",
        "border_seeds": str(len(found["scores"])),
    }


def _list_audit() -> dict[str, str]:
    audit = _read("audit")
    counts, standings = audit["counts"], audit["standings"]
    groups: dict[tuple[str, str], list[Any]] = {}
    for one in standings:
        name, _, rest = one["task"].partition(":")
        groups.setdefault((name, rest.partition(":data=")[2]), []).append(one)
    rows = [(_name_group(key, mine), *_count_standings(mine)) for key, mine in groups.items()]
    head = (
        "task",
        "recommended",
        "gain over the standard loss",
        "above/equal/below the best rival",
        "under any optimiser",
    )
    asked = counts["searches"] + len(audit["missing"])
    done = f"{counts['searches']} of its {asked} searches were run"
    if not rows:
        return {"audit_short": f"not measured yet: {done}", "audit_said": f"**Not measured yet:** {done}."}
    said = (
        f"{counts['searches']} searches (95 planned) recommend {counts['found']} found and {counts['shelf']} other known losses; "
        f"{counts['gain_everywhere']} have such a gain.\n{counts['below_any']} are significantly below the best known loss "
        "under any of the three (last column, seeds alone)"
    )
    short = f"so for {counts['found_above_everywhere']} of {counts['searches']} found losses"
    return {"audit_short": short, "audit_said": f"{said}.\n\n{_write_table(head, rows)}"}


OPTIMISERS = 3
ORIGINS = {"shelf": "known"}
"""Origin of a recommendation → the word that the page has for it."""


def _name_group(key: tuple[str, str], standings: Sequence[Any]) -> str:
    metrics = dict.fromkeys(one["task"].split(":")[1] for one in standings if ":" in one["task"])
    return " ".join(key).strip() + (f" ({', '.join(metrics)})" if metrics else "")


def _count_standings(standings: Sequence[Any]) -> tuple[str, ...]:
    """Return what is recommended, how often it is a gain under every optimiser, and how it stands beside its rivals."""
    chosen = [one for one in standings if one["is_recommended_recipe"]]
    origins = Counter(one["origin"] for one in chosen)
    places = [Counter(one.get(name) for one in chosen) for name in ("standing", "any_standing")]
    searches: dict[tuple[str, int], list[str | None]] = {}
    for one in standings:
        searches.setdefault((one["task"], one["search_seed"]), []).append(one["standard_standing"])
    gains = sum(found == ["above"] * OPTIMISERS for found in searches.values())
    return (
        ", ".join(f"{ORIGINS.get(origin, origin)} {count}" for origin, count in origins.items()),
        f"{gains} of {len(searches)}",
        *("/".join(str(counts[place]) for place in ("above", "equal", "below")) for counts in places),
    )


def _list_ablation() -> dict[str, str]:
    parts = {name: _read(name) for name in ("ablation", "ablation_digits", "ablation_det")}
    rows = [row for part in parts.values() for row in part["rows"]]
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    cells = {(row["arm"], row["task"]): _write_arm(row) for row in rows}
    arms = dict.fromkeys(row["arm"] for row in rows)
    table = [(arm, *(cells.get((arm, task), "–") for task in tasks)) for arm in arms]
    early = {row["arm"]: _write_score(row["course"][0][1], 2) for row in parts["ablation_digits"]["rows"]}
    return {
        "ablation_table": _write_table(("arm", *tasks), table),
        "early_paper": early["+ stop (the paper's)"],
        "early_shelf": early["+ shelf, sums"],
        "early_memory": early["+ memory"],
        **{f"{name}_seconds": f"{part['seconds']:g}" for name, part in parts.items()},
    }


def _write_arm(row: Mapping[str, Any]) -> str:
    scores = (_write_score(row[key]) for key in ("top", "chosen_by_mean"))
    return " ".join([f"{row['explored']:,.0f}/{row['trainings']:.0f}", "/".join(scores)])


def _list_transfer() -> dict[str, str]:
    found = _read("transfer")
    # A place that time allowed few losses in orders nothing.
    shown = [one for one in found["agreement"] if one["losses"] >= LOSSES]
    best = []
    for one in shown:
        here = [row for row in found["rows"] if all(row[key] == one[key] for key in ("kind", "place"))]
        best.append(max((row for row in here if row["mean"] is not None), key=lambda row: row["mean"]))
    orders = [
        f"{one['kind']} {_write_score(one['correlation'], 2)} [{_write_score(one['low'], 2)}, {_write_score(one['high'], 2)}]"
        for one in found["order"]
    ]

    def write_best(kind: str, origin: str, place: str = "home") -> str:
        trained = {(row["place"], row["loss"]): row["mean"] for row in found["rows"] if row["kind"] == kind}
        losses = {row["loss"] for row in found["rows"] if (row["kind"], row["origin"]) == (kind, origin)}
        if kind == "detection":
            # Not every loss was trained longer.
            losses = {loss for loss in losses if trained.get(("four times longer", loss)) is not None}
        means = [trained[place, loss] for loss in losses if trained.get((place, loss)) is not None]
        return _write_score(max(means, default=None))

    detectors = {"standard": "standard", "by hand": "weighted", "paper": "paper", "found": "found"}
    cells = {(one["kind"], one["place"]): _write_score(one["correlation"], 2) for one in shown}
    kinds, places = (list(dict.fromkeys(key[part] for key in cells)) for part in (0, 1))
    rows = [[kind, *(cells.get((kind, place), "–") for place in places)] for kind in kinds]
    return {
        "transfer_table": _write_table(("task", *places), rows),
        "transfer_losses": str(len({row["loss"] for row in found["rows"]})),
        "transfer_found_best": str(sum(row["origin"] == "found" for row in best)),
        "transfer_places": str(len(best)),
        "poses_paper": write_best("poses", "paper"),
        "poses_found": write_best("poses", "found"),
        **{f"det_{name}": write_best("detection", origin) for origin, name in detectors.items()},
        **{
            f"det_{name}_long": write_best("detection", origin, "four times longer")
            for origin, name in detectors.items()
        },
        "order_losses": str(found["order"][0]["losses"]),
        "order_correlations": ", ".join(orders),
    }


def _list_failures() -> dict[str, str]:
    gate, pairs, steps = _read("boosting_gate"), _read("pairs"), _read("steps")["order"]
    times = {name: _find_times(name, "random") for name in ("efficiency", "efficiency_small")}
    table = [one["rank"] for one in _read("lossbench")["tasks"]]
    return {
        "boosting_tables": str(len(gate["rows"])),
        "boosting_ahead": str(gate["ahead"]),
        "boosting_behind": str(gate["behind"]),
        "pairs_at": str(pairs["at_or_above"]),
        "pairs_sets": str(len(pairs["sets"])),
        "pairs_below": str(pairs["below"]),
        "pairs_at_choice": str(pairs["at_or_above_choice"]),
        "steps_low": f"{min(one['correlation'] for one in steps):.2f}",
        "steps_high": f"{max(one['correlation'] for one in steps):.2f}",
        **times,
        "efficiency_tuned": _find_times("efficiency_small", "tuned"),
        "top_rank": _write_score(median(one["top_eighth"] for one in table), 2),
        "all_rank": _write_score(median(one["eighth"] for one in table), 2),
        "table_tasks": str(len(table)),
    }


def _find_times(name: str, level: str) -> str:
    """Return how many times fewer trainings the default needs to a level than the paper's evolution."""
    for one in _read(name)["ratios"]:
        if (one["arm"], one["level"], one["unit"]) == ("all", level, "equivalents"):
            return f"{one['ratio']:.1f}"
    raise KeyError(level)


def _write_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---" for _ in head], *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _percent(value: float, digits: int = 0) -> str:
    return f"{100 * value:.{digits}f} %"


def _sign(value: float) -> str:
    return f"{value:+.4f}".replace("-", "−")


def _write_score(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}".replace("-", "−")


def _write_share(part: int, whole: int) -> str:
    return f"{part} of {whole}"


if __name__ == "__main__":
    main()
