"""`python -m local_gemini [--port 8099]`: the service in a process of its own, until it is stopped."""

from __future__ import annotations

import argparse
import asyncio
from contextlib import suppress

from local_gemini import LocalGemini


async def main(port: int) -> None:
    async with LocalGemini(port=port) as gemini:
        print(f"Gemini's wire format at {gemini.url}", flush=True)
        await gemini.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="local_gemini")
    parser.add_argument("--port", type=int, default=8099)
    with suppress(KeyboardInterrupt):
        asyncio.run(main(parser.parse_args().port))
