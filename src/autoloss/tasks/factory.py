"""Tasks by name: a factory declares the options of a task once, reads them from values or texts, and builds the task.

Where a class of options has a `recipe` or an `augmentation`, the fields of these are options, too. A task with two schedules has a
class of options for each; names of the schedule `full` have the prefix `full_`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from inspect import Parameter, Signature
from typing import Any, final

from autoloss.errors import RequestError, unknown
from autoloss.options import list_types
from autoloss.tasks.catalogue import find_entry
from autoloss.tasks.files import Images, inspect_images, report_faults
from autoloss.tasks.task import Task

PREFIXES = {"proxy": "", "full": "full_"}
"""Schedule → prefix of its options."""
GROUPS = ("recipe", "augmentation")
"""Options that are classes of options themselves."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFactory:
    """Builds a task of the catalogue, which lists the metrics, from its options.

    `options` is their class, with several schedules of those that they share; `schedules` maps a schedule to its options
    with their defaults; `build` gets the metric, the options and those of each schedule; `preset` maps given options to
    defaults that depend on them, `find_images` options to the images whose files can be inspected.
    """

    name: str
    options: type
    build: Callable[..., Task]
    schedules: Mapping[str, Any] = field(default_factory=dict)
    preset: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda options: {}
    find_images: Callable[[Any], Iterable[Images]] = lambda options: ()

    def __call__(self, metric: str | None = None, **options: Any) -> Any:
        """Build the task for a metric, the task's default if None; options are values, or their texts."""
        entry = find_entry(self.name, metric)
        return self.build(metric or entry.metrics[0], *self._read(options))

    def inspect(self, metric: str | None = None, **options: Any) -> None:
        """Inspect the files of the data, if there are any; a RequestError lists up to twenty faults. Arguments as for a call."""
        common, *_ = self._read(options)
        inspections = [inspect_images(images) for images in self.find_images(common)]
        if faults := [fault for found, _ in inspections for fault in found]:
            raise report_faults(f"The data of {self.name}", faults, "\n".join(read for _, read in inspections))

    def declarations(self) -> Iterator[tuple[str, Any]]:
        """Yield the prefix and the default values of each class of options, and of the groups in them."""
        for prefix, values in self._list_classes():
            yield prefix, values
            yield from ((prefix, getattr(values, name)) for name in list_types(type(values)) if name in GROUPS)

    def _list_classes(self) -> list[tuple[str, Any]]:
        return [("", self.options()), *((PREFIXES[schedule], values) for schedule, values in self.schedules.items())]

    @property
    def __signature__(self) -> Signature:
        """The metric and all options with their defaults."""
        options = [
            Parameter(f"{prefix}{name}", Parameter.KEYWORD_ONLY, annotation=kind, default=getattr(values, name))
            for prefix, values in self.declarations()
            for name, kind in list_types(type(values)).items()
            if name not in GROUPS
        ]
        metric = Parameter("metric", Parameter.KEYWORD_ONLY, annotation=str, default=find_entry(self.name).metrics[0])
        return Signature([metric, *options], return_annotation=Task)

    def _read(self, options: Mapping[str, Any]) -> list[Any]:
        """Return the options, and those of each schedule."""
        known = [name for name in self.__signature__.parameters if name != "metric"]
        for name in options:
            if name not in known:
                raise unknown(f"option of the task {self.name}", name, known)
        chosen = {**self.preset(options), **options}
        return [
            _fill(
                values, {name.removeprefix(prefix): chosen[name] for name in chosen if name.startswith(prefix)}, prefix
            )
            for prefix, values in self._list_classes()
        ]


def _fill(values: Any, given: Mapping[str, Any], prefix: str) -> Any:
    """Return options with the given values that are their own or those of a group in them."""
    names = list_types(type(values))
    groups = {name: _fill(getattr(values, name), given, prefix) for name in names if name in GROUPS}
    try:
        return replace(values, **{name: given[name] for name in names if name in given}, **groups)
    except RequestError as error:
        # The classes of a group and of a schedule know neither prefix.
        text = re.sub(rf"^({'|'.join(GROUPS)})\.", "", str(error))
        raise RequestError(f"{prefix * (text.split()[0] in names)}{text}") from None
