"""The reference says what the code says."""

from __future__ import annotations

import argparse
import ast
import re

from mcp_serving import conf
from mcp_serving.management.commands import mcp, runmcp
from tests.support.documents import DOCS, blocks
from tests.support.harness import ROOT


def test_the_page_about_checks_has_each_check_and_no_other() -> None:
    page = (DOCS / "reference" / "checks.md").read_text()
    told = re.findall(r"^\| `(mcp_\w+\.\w\d+)` \| (always|`--deploy`)", page, re.MULTILINE)
    source = "\n".join(path.read_text() for path in (ROOT / "mcp_serving").rglob("*.py"))
    of_rules = {f"mcp_oauth.{number}" for number in re.findall(r'Rule\("\w+", "([EW]\d+)"', source)}
    in_full = set(re.findall(r'"(mcp_\w+\.[EWI]\d+)"', source))
    assert sorted(name for name, _ in told) == sorted(of_rules | in_full)
    at_once = source[source.index("def check_settings") : source.index("def check_import")]
    for name, when in told:
        if name.startswith("mcp_serving"):
            assert (when == "always") == (name in at_once), name


def test_the_table_of_settings_has_each_key_and_option() -> None:
    page = (DOCS / "reference" / "settings.md").read_text()
    table = page[: page.index("## Other places")]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(conf.KEYS)
    assert set(re.findall(r"`(--[\w-]+)`", table)) == set(own_options())


def own_options() -> dict[str, str]:
    """The command's own options, with what is said of them."""
    parser = argparse.ArgumentParser(add_help=False)
    runmcp.Command().add_arguments(parser)
    return {action.option_strings[0]: action.help or "" for action in parser._actions if action.option_strings}


def test_the_page_about_the_command_says_what_its_help_says() -> None:
    ((_, told), *_) = blocks(DOCS / "reference" / "command.md")
    given = dict(re.findall(r"^  (--[\w-]+)(?: [A-Z]+)?\s+(.*?)(?=^  --|\Z)", told, re.DOTALL | re.MULTILINE))
    assert {option: " ".join(text.split()) for option, text in given.items()} == own_options()


def test_the_page_about_commands_has_each_action_and_option_of_mcp() -> None:
    page = (DOCS / "reference" / "command.md").read_text()
    section = page[page.index("## `mcp`") : page.index("## `mcptoken`")]
    parser = mcp.Command().create_parser("manage.py", "mcp")
    (actions,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    assert re.findall(r"^\| `([a-z]+)\b", section, re.MULTILINE) == list(actions.choices)
    of_django = {option for action in parser._actions for option in action.option_strings}
    options = {
        option
        for command in actions.choices.values()
        for action in command._actions
        for option in action.option_strings
        if option.startswith("--")
    }
    assert set(re.findall(r"(?<=`)--[\w-]+", section)) == options - of_django


def test_the_log_lines_on_the_page_about_workers_are_those_of_the_code() -> None:
    page = (DOCS / "howto" / "workers.md").read_text()
    table = page[page.index("| line | meaning |") :].partition("\n\n")[0]
    quoted = re.findall(r"`([A-Z][^`]+)`", table)
    assert len(quoted) >= 5
    nodes = [node for path in (ROOT / "mcp_serving").rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    patterns = [re.sub(r"%g|%s", ".*", re.escape(text)) for text in texts if len(text) > 20]
    for line in quoted:
        start = line.partition("...")[0].rstrip(" (")
        assert any(text.startswith(start) for text in texts) or any(re.match(each, start) for each in patterns), line
