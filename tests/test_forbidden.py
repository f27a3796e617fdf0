"""No text is ever run as code, nothing from a disk is unpickled, and no command goes through a shell: `make check` sees to it.

ruff knows most of these calls; what it cannot tell apart, such as in which module cloudpickle may be used, is looked for here.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
UNPICKLING = "src/autoloss/workers/messages.py"
"""Unpickles what crosses the pipes between a driver and its own workers."""

MODULES = frozenset({"pickle", "_pickle", "dill", "marshal", "shelve", "jsonpickle", "joblib", "pandas"})
"""Modules that unpickle, or read files by unpickling; the package imports none of them."""
CALLS = frozenset(
    {
        "eval",
        "exec",
        "compile",
        "__import__",
        "os.system",
        "os.popen",
        "pickle.load",
        "pickle.loads",
        "pickle.Unpickler",
        "cloudpickle.load",
        "cloudpickle.loads",
        "cloudpickle.Unpickler",
        "yaml.load",
        "yaml.unsafe_load",
        "yaml.full_load",
        "torch.hub.load",
        "subprocess.getoutput",
        "subprocess.getstatusoutput",
    }
)
OWN = {
    "src/autoloss/workers/messages.py": {"cloudpickle.loads"},
    # What a process hands to the loaders that it starts, in memory.
    "src/autoloss/tasks/loading.py": {"cloudpickle.loads"},
    "tests/mutants/mutating.py": {"compile", "exec"},
}
"""Path → what it alone may call."""


def faults(source: str, path: str = "src/autoloss/somewhere.py") -> Iterator[str]:
    """Give what is forbidden in a module, as `line: what`."""
    tree = ast.parse(source)
    names = dict(_imported(tree))
    in_package = path.startswith("src/")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and in_package:
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
            harmless = isinstance(node, ast.ImportFrom) and {each.name for each in node.names} == {"UnpicklingError"}
            for module in modules:
                if module.partition(".")[0] in MODULES and not harmless:
                    yield f"{node.lineno}: import {module}"
        elif isinstance(node, ast.Call):
            name = _name(node.func, names)
            keywords = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if name in CALLS - OWN.get(path, set()) and (in_package or not name.endswith(("pickle.loads", "compile"))):
                yield f"{node.lineno}: {name}"
            if name == "torch.load" and keywords.get("weights_only") != "True":
                yield f"{node.lineno}: torch.load without weights_only=True"
            if name.endswith(".load") and "allow_pickle" in keywords and keywords["allow_pickle"] != "False":
                yield f"{node.lineno}: {name} with allow_pickle"
            if keywords.get("shell", "False") != "False":
                yield f"{node.lineno}: {name} through a shell"
            if name.startswith("subprocess.") and node.args and isinstance(node.args[0], ast.Constant | ast.JoinedStr):
                yield f"{node.lineno}: {name} of a text"


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Give each imported name with what it stands for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((each.asname, each.name) for each in node.names if each.asname)
        elif isinstance(node, ast.ImportFrom):
            yield from ((each.asname or each.name, f"{node.module}.{each.name}") for each in node.names)


def _name(function: ast.expr, names: dict[str, str]) -> str:
    """Return what is called, `module.name`; nothing for what has no such name."""
    parts: list[str] = []
    while isinstance(function, ast.Attribute):
        parts.append(function.attr)
        function = function.value
    if not isinstance(function, ast.Name):
        return ""
    full = ".".join([names.get(function.id, function.id), *reversed(parts)])
    return full.removeprefix("builtins.").replace("numpy.", "np.")


def sources() -> list[Path]:
    return sorted(path for folder in ("src", "bench", "tests", "website") for path in (ROOT / folder).rglob("*.py"))


def test_nothing_here_does_what_is_forbidden():
    found = [
        f"{path.relative_to(ROOT)}:{fault}"
        for path in sources()
        for fault in faults(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))
    ]
    assert len(sources()) > 100
    assert found == []


FORBIDDEN = [
    "eval(text)",
    "exec(text)",
    "import builtins\nbuiltins.eval(text)",
    "__import__(text)",
    "compile(text, '', 'exec')",
    "import os\nos.system(text)",
    "from os import system\nsystem(text)",
    "import os as o\no.popen(text)",
    "import pickle",
    "from pickle import loads as read",
    "import dill",
    "import marshal",
    "import shelve",
    "import cloudpickle\ncloudpickle.loads(body)",
    "from cloudpickle import loads\nloads(body)",
    "import yaml\nyaml.load(text)",
    "import yaml\nyaml.load(text, Loader=yaml.Loader)",
    "import torch\ntorch.load(path)",
    "import torch\ntorch.load(path, weights_only=False)",
    "import torch\ntorch.load(path, weights_only=chosen)",
    "from torch import load\nload(path)",
    "import torch\ntorch.hub.load(name)",
    "import numpy as np\nnp.load(path, allow_pickle=True)",
    "import numpy\nnumpy.load(path, allow_pickle=chosen)",
    "import subprocess\nsubprocess.run(words, shell=True)",
    "import subprocess\nsubprocess.run('ls')",
    "import subprocess\nsubprocess.Popen(f'ls {folder}')",
    "import subprocess\nsubprocess.getoutput('ls')",
]


@pytest.mark.parametrize("source", FORBIDDEN)
def test_what_is_forbidden_is_caught(source):
    assert list(faults(source))


@pytest.mark.parametrize(
    "source",
    [
        "network.eval()",
        "import re\nre.compile(text)",
        "import torch\ntorch.load(path, weights_only=True)",
        "from pickle import UnpicklingError",
        "import cloudpickle\ncloudpickle.dumps(task)",
        "import numpy as np\nnp.load(path, mmap_mode='r')",
        "import subprocess\nsubprocess.run(['ls', folder], check=True)",
        "import json\njson.loads(text)",
    ],
)
def test_what_only_looks_like_it_is_let_through(source):
    assert not list(faults(source))


def test_only_the_messages_of_workers_are_unpickled():
    source = "import cloudpickle\ncloudpickle.loads(body)"
    assert not list(faults(source, UNPICKLING))
    assert list(faults(source, "src/autoloss/run/workers.py"))


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("eval(text)", "S307"),
        ("exec(text)", "S102"),
        ("import pickle\n\npickle.loads(body)", "S301"),
        ("import marshal\n\nmarshal.loads(body)", "S302"),
        ("import yaml\n\nyaml.load(text)", "S506"),
        ("import subprocess\n\nsubprocess.run(text, shell=True)", "S602"),
        ("run(text, shell=True)", "S604"),
        ("import os\n\nos.system(text)", "S605"),
    ],
)
def test_the_linter_of_make_check_catches_it_too(source, rule):
    command = [sys.executable, "-m", "ruff", "check", "--stdin-filename", "src/autoloss/somewhere.py", "-"]
    found = subprocess.run(command, input=source, capture_output=True, text=True, cwd=ROOT)
    assert found.returncode == 1
    assert rule in found.stdout
