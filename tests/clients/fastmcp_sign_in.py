"""fastmcp's client, for a server with sign-in. What it prints and reads is in signing_in.py."""

import asyncio
import json
import sys
import time
import webbrowser
from typing import Any

from fastmcp import Client
from fastmcp.client.auth import OAuth


class Printed(webbrowser.BaseBrowser):
    """The browser that fastmcp opens: the test opens the page."""

    def open(self, url: str, new: int = 0, autoraise: bool = True) -> bool:
        print(json.dumps({"open": url}), flush=True)
        return True


async def main(spec: dict[str, Any]) -> None:
    auth = OAuth(client_name="FastMCP Client")
    async with Client(spec["url"], auth=auth, mode=spec["mode"]) as client:
        while True:
            result = await client.call_tool("who", {})
            print(json.dumps({"called": result.content[0].text}), flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            # As if the hour were over: this client refreshes by the clock alone.
            auth.context.token_expiry_time = time.time() - 1


if __name__ == "__main__":
    webbrowser.register("printed", None, Printed("printed"), preferred=True)
    asyncio.run(main(json.loads(sys.argv[1])))
