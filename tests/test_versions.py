"""What pyproject.toml says of versions, and what noxfile.py tests of it."""

from __future__ import annotations

import ast
import tomllib

from tests.support.harness import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_lowest_versions_that_are_allowed_are_those_that_are_tested() -> None:
    assignments = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse((ROOT / "noxfile.py").read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for dependency in PROJECT["dependencies"]:
        name, _, rest = dependency.partition(">=")
        lowest = rest.split(",")[0]
        tested = assignments["LOWEST"].pop(name)
        assert tested == lowest or tested == f"{lowest}.0"
    assert assignments["LOWEST"] == {}


def test_every_version_that_is_named_is_tested() -> None:
    noxfile = (ROOT / "noxfile.py").read_text()
    for classifier in PROJECT["classifiers"]:
        *_, kind, version = classifier.split(" :: ")
        if kind in ("Django", "Python") and "." in version:
            assert f'"{version}"' in noxfile, classifier
