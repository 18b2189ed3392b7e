"""docs/howto/containers.md: the command of its image runs as PID 1, and its manifest fits the settings."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from mcp_serving.conf import DEFAULT_SHUTDOWN_TIMEOUT
from mcp_serving.server import CLEANUP_SECONDS
from tests.support.documents import DOCS, blocks, environment_of_a_project, project
from tests.support.harness import DEADLINE, must_be_installed, running

PAGE = DOCS / "howto" / "containers.md"


def block(language: str) -> str:
    (text,) = [text for name, text in blocks(PAGE) if name == language]
    return text


def container() -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod of the manifest, and its container."""
    pod = yaml.safe_load(block("yaml"))["spec"]["template"]["spec"]
    (only,) = pod["containers"]
    return pod, only


def image_command() -> list[str]:
    (line,) = [line for line in block("dockerfile").splitlines() if line.startswith("CMD ")]
    command: list[str] = json.loads(line.removeprefix("CMD "))
    return command


def test_the_grace_period_of_the_manifest_is_longer_than_the_whole_shutdown() -> None:
    pod, _ = container()
    (delay,) = re.findall(r'MCP_SERVING\["SHUTDOWN_DELAY"\] = ([\d.]+)', PAGE.read_text())
    assert pod["terminationGracePeriodSeconds"] > float(delay) + DEFAULT_SHUTDOWN_TIMEOUT + CLEANUP_SECONDS
    probe = container()[1]["readinessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] < float(delay)


def test_the_image_and_the_manifest_have_the_same_port() -> None:
    _, only = container()
    (port,) = [each["containerPort"] for each in only["ports"]]
    assert f"EXPOSE {port}" in block("dockerfile")
    assert image_command()[-1] == f"0.0.0.0:{port}"
    assert only["livenessProbe"]["httpGet"]["port"] == only["readinessProbe"]["httpGet"]["port"] == port


@pytest.mark.process
@pytest.mark.timeout(300)
def test_as_pid_1_the_command_of_the_image_answers_the_probes_and_stops_with_0(tmp_path: Path) -> None:
    namespace = ["unshare", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*namespace, "true"], capture_output=True).returncode:
        must_be_installed("unshare is missing, or may not create a PID namespace")
    folder = project(tmp_path / "mysite", "howto/containers.md")
    with (folder / "mysite" / "settings.py").open("a") as settings:
        settings.write('\nMCP_SERVING["SHUTDOWN_DELAY"] = 1.0\ndel MCP_SERVING["HTTP_SERVER"]\n')
    python, *arguments, _ = image_command()
    assert python == "python"
    env = environment_of_a_project()
    with running([*namespace, sys.executable, *arguments, "127.0.0.1:0"], env=env, cwd=folder) as process:
        address = process.wait_for(r"is at (http://127\.0\.0\.1:\d+)/mcp")[1]
        (first,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert re.search(r"^NSpid:.*\t1$", Path(f"/proc/{first}/status").read_text(), re.MULTILINE)
        _, only = container()
        paths = [only[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")]
        with httpx2.Client(base_url=address, headers={"Host": "10.1.2.3:8000"}, timeout=DEADLINE) as kubelet:
            assert [kubelet.get(path).status_code for path in paths] == [200, 200]
            subprocess.run(["kill", f"-{signal.SIGTERM.value}", first], check=True)
            process.wait_for("Received SIGTERM: shutting down in 1 seconds.")
            assert [kubelet.get(path).status_code for path in paths] == [200, 503]
        assert process.wait() == 0
