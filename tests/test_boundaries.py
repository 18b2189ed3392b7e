"""Who may import whom, how large a module may be, and which names of dependencies the package touches."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.documents import all_documents
from tests.support.harness import ROOT

PACKAGE = ROOT / "mcp_serving"

LAYERS = [
    {"mcp_serving", "__main__", "tokens", "oauth", "console", "calls", "otel", "management"},
    {"server", "checks", "apps", "health"},
    {"asgi"},
    {"sessions"},
    {"workers", "tools", "runtime", "testing", "inspection", "preview"},
    {"notifications"},
    {"stdio", "daphne", "channel_layer", "rate_limits"},
    {"security", "loading", "conf", "call_isolation", "call_outcomes", "call_records"},
    {"web_servers", "sdk", "sdk_installation", "lifespan", "transport"},
    {
        "threads",
        "fair_threads",
        "garbage",
        "users",
        "current_request",
        "errors",
        "validation_errors",
        "logs",
        "signals",
        "instruments",
        "record_queue",
        "shared_timer",
        "param_headers",
        "shutdown",
    },
]
"""The folders and modules of the package from top to bottom: each imports from its own layer and those below."""

OPTIONAL_APPS = ["tokens", "oauth", "console", "calls", "otel"]
MOUNT = ["asgi", "sessions", "workers", "tools", "web_servers"]
"""What serves a mounted handler under any ASGI server, without ``Server``."""

PRIVATE_NAMES = {
    "sdk",
    "daphne.server",
    "daphne.transport",
    "web_servers.daphne",
    "web_servers.hypercorn",
    "channel_layer",
    "management.process",
}
"""The modules that touch private names of a dependency or of Python: tests fail when one of these names moves."""

DOCUMENTED = {"_base_manager", "_db", "_default_manager", "_exit", "_meta"}
"""Django and Python document these names as public."""

EXCEPTION = re.compile(r"^# In one (module|folder|function) because \w", re.MULTILINE)

# What does not hold yet. An entry that is no longer needed makes its test fail: remove it.
CYCLES_LEFT: set[frozenset[str]] = set()
UPWARD_IMPORTS_LEFT: set[tuple[str, str]] = set()
PRIVATE_NAMES_LEFT = {("oauth.views.discovery", "_get_endpoint_url")}
DAPHNE_IMPORTS_LEFT = {"server"}
LARGE_MODULES_LEFT: set[str] = set()
LARGE_FUNCTIONS_LEFT: set[str] = set()
LARGE_FOLDERS_LEFT: set[str] = set()


def short(module: str) -> str:
    """``mcp_serving.asgi.handler`` -> ``asgi.handler``."""
    return module.removeprefix("mcp_serving.")


def _module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = {_module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def nodes(module: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(PATHS[module].read_text())))


@cache
def imported_names(module: str) -> list[str]:
    """Every module that a module imports, wherever in it and for types alone too; an imported name with its module."""
    names: list[str] = []
    for node in nodes(module):
        if isinstance(node, ast.Import):
            names += (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            names += (f"{node.module}.{name.name}" for name in node.names)
    return names


@cache
def imports_of(module: str) -> frozenset[str]:
    """The modules of the package that it imports."""
    found = (name if name in PATHS else name.rpartition(".")[0] for name in imported_names(module))
    return frozenset(name for name in found if name in PATHS)


def modules_that_import(*prefixes: str) -> set[str]:
    return {
        short(module)
        for module in PATHS
        for name in imported_names(module)
        if any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)
    }


def below(folder: str, modules: Iterable[str]) -> set[str]:
    """Those of the modules that are this one, or in this folder."""
    return {module for module in modules if module == folder or module.startswith(f"{folder}.")}


def layer_of(module: str) -> int:
    (layer,) = [number for number, names in enumerate(LAYERS) if short(module).partition(".")[0] in names]
    return layer


# Imports


def test_no_modules_import_each_other_not_even_for_types() -> None:
    reached: dict[str, set[str]] = {}
    for module in PATHS:
        found, left = set(), [module]
        while left:
            left += (new := imports_of(left.pop()) - found)
            found |= new
        reached[module] = found
    cycles = {
        frozenset(short(other) for other in PATHS if other in reached[module] and module in reached[other])
        for module in PATHS
    }
    assert cycles - {frozenset()} == CYCLES_LEFT


def test_each_module_stands_in_one_layer() -> None:
    names = [name for layer in LAYERS for name in layer]
    assert len(names) == len(set(names))
    assert {short(module).partition(".")[0] for module in PATHS} <= set(names)


def test_imports_run_downwards() -> None:
    upwards = {
        (short(module), short(other))
        for module in PATHS
        for other in imports_of(module)
        if layer_of(other) < layer_of(module)
    }
    assert upwards == UPWARD_IMPORTS_LEFT


def test_the_package_never_imports_the_example_or_the_tests() -> None:
    assert modules_that_import("example_project", "tests", "bench") == set()


@pytest.mark.parametrize("app", OPTIONAL_APPS)
def test_nothing_outside_of_an_optional_app_imports_it(app: str) -> None:
    importing = modules_that_import(f"mcp_serving.{app}")
    assert importing == below(app, importing)


@pytest.mark.parametrize("folder", MOUNT)
def test_a_mounted_handler_works_without_the_server(folder: str) -> None:
    server = modules_that_import("mcp_serving.server", "mcp_serving.stdio", "mcp_serving.daphne")
    assert below(folder, server) == set()


def test_daphne_and_twisted_are_imported_in_their_folder_alone() -> None:
    importing = modules_that_import("daphne", "twisted")
    assert importing - below("daphne", importing) == DAPHNE_IMPORTS_LEFT


# Private names


@cache
def own_names() -> set[str]:
    """Each name that the package itself gives to a function, class, variable, parameter or attribute."""
    names = set()
    for module in PATHS:
        for node in nodes(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name)
                and node.value.id in ("self", "cls")
            ):
                names.add(node.attr)
    return names


def private_names_of_others(module: str) -> Iterator[str]:
    """Each private attribute or import in a module, unless the package has defined something of this name."""
    own = own_names()
    for node in nodes(module):
        if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr) and node.attr not in own | DOCUMENTED:
            yield node.attr
    for name in imported_names(module):
        if not name.startswith("mcp_serving.") and re.search(r"\._[^_]", name):
            yield name


def test_private_names_of_dependencies_are_touched_in_their_modules_alone() -> None:
    touched = {
        (short(module), name)
        for module in PATHS
        if short(module) not in PRIVATE_NAMES
        for name in private_names_of_others(module)
    }
    assert touched == PRIVATE_NAMES_LEFT


# Sizes


def test_a_module_has_at_most_350_lines() -> None:
    large = {
        short(module)
        for module, path in PATHS.items()
        if len(path.read_text().splitlines()) > 350 and not EXCEPTION.search(path.read_text())
    }
    assert large == LARGE_MODULES_LEFT


def test_a_function_has_at_most_50_lines() -> None:
    large = set()
    for module, path in PATHS.items():
        lines = path.read_text().splitlines()
        for node in nodes(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                text = "\n".join(line.strip() for line in lines[node.lineno - 1 : node.end_lineno])
                if text.count("\n") + 1 > 50 and not EXCEPTION.search(text):
                    large.add(f"{short(module)}.{node.name}")
    assert large == LARGE_FUNCTIONS_LEFT


def test_a_folder_has_at_most_ten_modules() -> None:
    large = set()
    for folder in {path.parent for path in PATHS.values()}:
        modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        if len(modules) > 10 and not EXCEPTION.search((folder / "__init__.py").read_text()):
            large.add(str(folder.relative_to(ROOT)))
    assert large == LARGE_FOLDERS_LEFT


# Documents


def test_the_module_table_of_the_architecture_is_complete() -> None:
    """A folder's row stands for the modules in it that have none."""
    rows = [row for row in (ROOT / "ARCHITECTURE.md").read_text().splitlines() if row.startswith("| ")]
    named = [cell for row in rows for cell in re.findall(r"`([^`]+\.py|[\w/]+/)`", row.split("|")[1])]
    for cell in named:
        assert (PACKAGE / cell).exists(), cell
        assert named.count(cell) == 1, cell
    for path in PATHS.values():
        relative = path.relative_to(PACKAGE)
        if path.name != "__init__.py":
            assert str(relative) in named or any(f"{folder}/" in named for folder in relative.parents), path


def test_every_test_that_the_documents_name_exists() -> None:
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    for document in all_documents():
        for name in re.findall(r"`(test_\w+)`", document.read_text()):
            assert f"def {name}(" in tests, f"{document.name}: {name}"


def test_the_lock_file_of_npm_has_a_hash_for_each_package_and_names_no_registry() -> None:
    lock = json.loads((ROOT / "tests" / "npm" / "package-lock.json").read_text())
    packages = {name: package for name, package in lock["packages"].items() if name}
    assert packages
    for name, package in packages.items():
        assert "integrity" in package, name
        assert "resolved" not in package, name
