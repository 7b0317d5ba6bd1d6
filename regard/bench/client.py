"""Clients of `regard serve` in a separate process.

    python client.py PORT FIRST:END TOKENS PROMPT

Connects, prints a line, waits for one, then asks for the streamed answers to prompts FIRST to END at once,
each of which is PROMPT turned round by another number of characters. Prints one JSON line: when each began
and ended, by the clock that all processes share, and the seconds to its first token.
"""

import asyncio
import json
import sys
import time


async def ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, body: bytes
) -> list[float]:
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(body)}\r\n"
    begin = time.monotonic()
    writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
    status = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in status.split(b"\r\n")[0]:
        raise RuntimeError(status.decode())
    tail = await reader.read(2**16)
    first = time.monotonic() - begin
    while b"[DONE]" not in tail:  # the text is not examined: the server is measured, not this process
        more = await reader.read(2**16)
        if not more:
            raise EOFError("the server closed the connection")
        tail = tail[-16:] + more
    end = time.monotonic()
    writer.close()
    return [begin, end, first]


async def main() -> None:
    port, streams, tokens, prompt = int(sys.argv[1]), sys.argv[2].split(":"), int(sys.argv[3]), sys.argv[4]
    bodies = []
    for n in range(*map(int, streams)):
        i = n % len(prompt)
        body = {"prompt": prompt[i:] + prompt[:i], "max_tokens": tokens, "temperature": 0, "stream": True}
        bodies.append(json.dumps(body).encode())
    pairs = [await asyncio.open_connection("127.0.0.1", port, limit=2**20) for _ in bodies]
    print("ready", flush=True)
    sys.stdin.readline()
    asking = [ask(*pair, port, body) for pair, body in zip(pairs, bodies, strict=True)]
    columns = zip(*await asyncio.gather(*asking), strict=True)
    print(json.dumps(dict(zip(("begin", "end", "first"), columns, strict=True))))


if __name__ == "__main__":
    asyncio.run(main())
