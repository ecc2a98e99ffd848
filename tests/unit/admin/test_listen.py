"""Addresses the admin server accepts."""

from __future__ import annotations

import pytest

from extproc.errors import CannotListen
from extproc.listen import split_address


@pytest.mark.parametrize(
    ("listen", "host", "port"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080),
        ("localhost:0", "localhost", 0),
        ("[::1]:8080", "::1", 8080),
        (":8080", "", 8080),
    ],
)
def test_good(listen: str, host: str, port: int) -> None:
    assert split_address("--admin-listen", listen) == (host, port)


@pytest.mark.parametrize(
    "listen",
    ["", "8080", "localhost", "localhost:http", "::1:8080", "[::1", "h:99999", "u@h:1", "h:1/x", "unix:/tmp/x"],
)
def test_bad_addresses_say_what_was_expected(listen: str) -> None:
    with pytest.raises(CannotListen, match=r"--admin-listen: expected host:port such as 127\.0\.0\.1:8080"):
        split_address("--admin-listen", listen)
