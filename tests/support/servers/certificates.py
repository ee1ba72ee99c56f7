"""Certificates for tests: an authority, and what it signs, made by openssl in a fraction of a second."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Authority:
    folder: Path

    @property
    def file(self) -> str:
        return str(self.folder / "ca.pem")

    def sign(self, name: str, where: str = "IP:127.0.0.1,DNS:localhost", days: int = 30) -> tuple[str, str]:
        """A certificate and its key."""
        key, certificate, request = (str(self.folder / f"{name}.{end}") for end in ("key", "pem", "csr"))
        _openssl("req", "-new", *_NEW_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        extension = self.folder / f"{name}.ext"
        extension.write_text(f"subjectAltName={where}\n")
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.file, "-CAkey", str(self.folder / "ca.key"), "-CAcreateserial",
            "-days", str(days), "-extfile", str(extension), "-out", certificate,
        )  # fmt: skip
        return certificate, key


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def authority(folder: Path) -> Authority:
    folder.mkdir(parents=True, exist_ok=True)
    key, certificate = str(folder / "ca.key"), str(folder / "ca.pem")
    # CA:TRUE is openssl's own for a self-signed one; Python 3.13 and later want the use of its key, too (RFC 5280).
    usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
    _openssl("req", "-x509", *_NEW_KEY, *usage, "-days", "30", "-keyout", key, "-out", certificate, "-subj", "/CN=site")
    return Authority(folder)


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True, timeout=60)
