"""In an empty environment: the SDK's client finds the late rank."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import mcp

PROGRAM = str(Path(sys.executable).with_name("gpuscope"))


async def main() -> None:
    parameters = mcp.StdioServerParameters(command=PROGRAM, args=["mcp", sys.argv[1]])
    async with mcp.Client(mcp.stdio_client(parameters)) as client:
        tools = (await client.list_tools()).tools
        said = (await client.call_tool("open_run", {"path": "ddp_slow_rank"})).content[0].text
        assert "Rank 1 is late" in said, said
        change = [{"change": "replaced_rank", "rank": 1}]
        gain = (await client.call_tool("what_if", {"run": "ddp_slow_rank", "changes": change})).content[0].text
        assert gain.startswith("step "), gain
        assert "(90 % range)" in gain, gain
        print(f"{len(tools)} tools; {gain.splitlines()[0]}")


anyio.run(main)
