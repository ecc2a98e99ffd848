"""A certificate authority for one test run, and a server's certificate of it, made by openssl's command line."""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files. `authority`: what a client must trust; `server`, `key`: of a server on 127.0.0.1 and nowhere else."""

    authority: Path
    server: Path
    key: Path

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.server, self.key)
        return context


def make_certificates(folder: Path) -> Certificates:
    made = Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    authority = ("-keyout", str(folder / "ca.key"), "-out", str(made.authority), "-subj", "/CN=test authority")
    _openssl("req", "-x509", *new_key, *authority)
    signed_by = ("-CA", str(made.authority), "-CAkey", str(folder / "ca.key"))
    names = ("-subj", "/CN=store", "-addext", "subjectAltName=IP:127.0.0.1")
    extensions = ("-addext", "basicConstraints=critical,CA:FALSE")
    _openssl(
        "req", "-x509", *new_key, *signed_by, *names, *extensions, "-keyout", str(made.key), "-out", str(made.server)
    )
    return made


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
