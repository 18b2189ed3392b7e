"""The official suite's scenarios for authorization servers, whose user agrees in Chromium: ``make conformance``."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.npm import script
from tests.support import in_django
from tests.support.asgi_servers import serving
from tests.support.browser import running_browser
from tests.support.harness import reserved_port
from tests.support.sign_in import agree, give_password, log_in, until

from oauth2_provider.models import Application  # isort: skip - after Django is set up

pytestmark = pytest.mark.process

SUITE = "@modelcontextprotocol/conformance/dist/index.js"


def test_the_authorization_scenarios_pass(users_of_its_own: None, tmp_path: Path) -> None:
    give_password("ann")
    env = {**in_django.ENVIRONMENT, "DJANGO_SETTINGS_MODULE": "tests.project.settings_with_oauth"}
    with (
        serving("uvicorn", "tests.project.oauth_asgi", env=env) as (_, address),
        running_browser(tmp_path / "browser") as browser,
        reserved_port() as port,
    ):
        client = Application.objects.create(
            name="The suite",
            client_type="public",
            authorization_grant_type="authorization-code",
            redirect_uris=f"http://127.0.0.1:{port}/callback",
        )
        named = ["--client-id", client.client_id, "--resource", f"{address}/mcp", "--port", str(port)]
        command = [*script(SUITE), "authorization", "--url", address, *named, "--output-dir", str(tmp_path / "results")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as suite:
            assert suite.stdout is not None
            lines = []
            for line in suite.stdout:
                lines.append(line)
                if url := re.match(r"http://\S+/oauth/authorize/\S+", line):
                    page = browser.open(url[0])
                    if until(page, "location.pathname") == "/login/":
                        log_in(page, "ann")
                    agree(page)
    output = "".join(lines)
    assert suite.returncode == 0, output
    assert "authorization-server-metadata-endpoint: 2 passed, 0 failed" in output
    assert "authorization-code-grant: 1 passed, 0 failed" in output
