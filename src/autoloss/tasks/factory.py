"""Tasks by name: a factory declares the options of a task once, reads them from values or texts, and builds the task.

A task with two schedules has a class of options for each, with a `recipe`: its own fields and those of the recipe are options of
the same names, with the prefix `full_` for the schedule `full`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from inspect import Parameter, Signature
from typing import Any, final

from autoloss.errors import unknown
from autoloss.options import list_types
from autoloss.tasks.catalogue import find_entry
from autoloss.tasks.files import Images, inspect_images, report_faults
from autoloss.tasks.task import Task
from autoloss.training.recipe import Recipe

PREFIXES = {"proxy": "", "full": "full_"}
"""Schedule → prefix of its options."""
RECIPE = "recipe"


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
        """Yield the prefix and the default values of each class of options."""
        yield "", self.options()
        for schedule, values in self.schedules.items():
            yield PREFIXES[schedule], values
            yield PREFIXES[schedule], values.recipe

    @property
    def __signature__(self) -> Signature:
        """The metric and all options with their defaults."""
        options = [
            Parameter(f"{prefix}{name}", Parameter.KEYWORD_ONLY, annotation=kind, default=getattr(values, name))
            for prefix, values in self.declarations()
            for name, kind in list_types(type(values)).items()
            if name != RECIPE
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
        read: list[Any] = [self.options(**_select(self.options, chosen))]
        for schedule, values in self.schedules.items():
            prefix = PREFIXES[schedule]
            own = {name.removeprefix(prefix): chosen[name] for name in chosen if name.startswith(prefix)}
            recipe = replace(values.recipe, **_select(Recipe, own))
            read.append(replace(values, recipe=recipe, **_select(type(values), own)))
        return read


def make_recipe(options: Any, **fixed: Any) -> Recipe:
    """Return a recipe with the options that are its fields, and further fixed values."""
    return Recipe(**_select(Recipe, {name: getattr(options, name) for name in list_types(type(options))}), **fixed)


def _select(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are fields of a class of options."""
    return {name: values[name] for name in list_types(kind) if name in values}
