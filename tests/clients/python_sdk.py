"""The Python SDK's client. What every client here does, and how they say it, is in real_clients.py."""

import asyncio
import json
import sys
from typing import Any

import anyio
from mcp import Client, StdioServerParameters
from mcp_types import ElicitRequestParams, ElicitResult


def text(result: Any) -> str:
    return "".join(each.text for each in result.content)


async def main(spec: dict[str, Any]) -> dict[str, Any]:
    label = spec["label"]
    questions: list[str] = []

    async def user(context: Any, params: ElicitRequestParams) -> ElicitResult:
        questions.append(params.message)
        return ElicitResult(action="accept", content={}) if "7" in params.message else ElicitResult(action="decline")

    target = spec["url"] if "url" in spec else StdioServerParameters(**spec["command"])
    saw: dict[str, Any] = {"questions": questions}
    async with Client(target, mode=spec["mode"], elicitation_callback=user) as client:
        saw["protocol"] = client.protocol_version
        saw["tools"] = sorted(tool.name for tool in (await client.list_tools()).tools)
        saw["add"] = (await client.call_tool("add", {"a": 2, "b": 3})).structured_content

        progress: list[float] = []

        async def report(done: float, total: float | None, message: str | None) -> None:
            progress.append(done)

        saw["count"] = text(await client.call_tool("count", {"to": 3}, progress_callback=report))
        saw["progress"] = progress
        accepted = await client.call_tool("delete_order", {"label": label, "number": 7})
        saw["accepted"] = [accepted.is_error, text(accepted)]
        declined = await client.call_tool("delete_order", {"label": label, "number": 8})
        saw["declined"] = [declined.is_error, text(declined)]
        saw["resource"] = (await client.read_resource("test://greeting")).contents[0].text  # type: ignore[union-attr]
        saw["prompt"] = (await client.get_prompt("greet", {"name": "Ada"})).messages[0].content.text  # type: ignore[union-attr]

        with anyio.CancelScope() as scope:

            async def leave(done: float, total: float | None, message: str | None) -> None:
                scope.cancel()

            await client.call_tool("wait", {"label": label}, progress_callback=leave)
        saw["cancelled"] = scope.cancelled_caught

        async def working(done: float, total: float | None, message: str | None) -> None:
            print(json.dumps("cut me"), flush=True)

        try:
            saw["outlast"] = text(await client.call_tool("outlast", {"label": label}, progress_callback=working))
        except Exception:
            saw["outlast"] = "failed"
        saw["after"] = (await client.call_tool("add", {"a": 1, "b": 1})).structured_content
    return saw


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))
