"""The requests that are measured: what the OpenAI SDK sends, with a body of an exact size. Standard library only, so that a
load generator starts at once."""

from __future__ import annotations

import json

PATH = "/v1/chat/completions"
HEADERS = {
    "host": "gateway.example",
    "accept": "application/json",
    "accept-encoding": "gzip, deflate",
    "authorization": "Bearer sk-bench-0123456789abcdef0123456789abcdef",
    "content-type": "application/json",
    "user-agent": "OpenAI/Python 2.8.0",
    "x-stainless-lang": "python",
    "x-stainless-read-timeout": "600",
    "x-stainless-retry-count": "0",
    "x-stainless-runtime": "CPython",
    "x-stainless-runtime-version": "3.11.7",
}


def chat_body(size: int) -> bytes:
    """A chat request of exactly `size` bytes; nothing for 0, which asks for what headers alone tell."""
    if size == 0:
        return b""
    request = {"model": "llama-3-8b", "messages": [{"role": "user", "content": ""}], "max_tokens": 64}
    room = size - len(json.dumps(request))
    if room < 0:
        raise ValueError(f"a chat request takes at least {size - room} bytes")
    request["messages"] = [{"role": "user", "content": ("All work and no play. " * (room // 22 + 1))[:room]}]
    return json.dumps(request).encode()


def http_request(body: bytes, *, close: bool = False) -> bytes:
    """The whole request as HTTP/1.1 bytes."""
    headers = {**HEADERS, "content-length": str(len(body)), "connection": "close" if close else "keep-alive"}
    lines = [f"POST {PATH} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode() + body
