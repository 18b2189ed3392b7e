"""The rules of ARCHITECTURE.md about who may import whom, and what its documents name."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.documents import all_documents
from tests.support.harness import ROOT

PACKAGE = ROOT / "mcp_serving"


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def importing(prefix: str, *, below: Path = PACKAGE) -> set[str]:
    return {
        str(path.relative_to(PACKAGE))
        for path in below.rglob("*.py")
        if any(module == prefix or module.startswith(f"{prefix}.") for module in imports(path))
    }


def test_the_package_never_imports_the_example_or_the_tests() -> None:
    assert importing("example_project") == importing("tests") == set()


def test_what_a_router_mounts_never_imports_what_server_drives() -> None:
    assert importing("mcp_serving.serving", below=PACKAGE / "asgi") == set()
    assert importing("mcp_serving.server", below=PACKAGE / "asgi") == set()


def test_what_does_not_need_the_tokens_never_imports_them() -> None:
    assert {path for path in importing("mcp_serving.tokens") if not path.startswith("tokens/")} == set()


def test_two_modules_import_daphne_at_run_time() -> None:
    # server.py names the class in its type hints only.
    assert importing("daphne") == {"daphne/server.py", "daphne/transport.py", "server.py"}
    assert "if TYPE_CHECKING:" in (PACKAGE / "server.py").read_text().split("from daphne", 1)[0]
    assert importing("twisted") == {"daphne/server.py", "daphne/transport.py"}
    assert importing("mcp_serving.daphne") == {"daphne/__init__.py", "server.py"}


def test_the_lock_file_of_npm_has_a_hash_for_each_package_and_names_no_registry() -> None:
    lock = json.loads((ROOT / "tests" / "npm" / "package-lock.json").read_text())
    packages = {name: package for name, package in lock["packages"].items() if name}
    assert packages
    for name, package in packages.items():
        assert "integrity" in package, name
        assert "resolved" not in package, name


def test_every_test_that_the_documents_name_exists() -> None:
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    for document in all_documents():
        for name in re.findall(r"`(test_\w+)`", document.read_text()):
            assert f"def {name}(" in tests, f"{document.name}: {name}"


def test_the_module_table_of_the_architecture_is_complete() -> None:
    table = (ROOT / "ARCHITECTURE.md").read_text()
    for path in PACKAGE.rglob("*.py"):
        if path.name != "__init__.py":
            rows = [row for row in table.splitlines() if row.startswith("| ")]
            first_cells = [cell for row in rows for cell in re.findall(r"`([^`]+)`", row.split("|")[1])]
            assert first_cells.count(str(path.relative_to(PACKAGE))) == 1, path
