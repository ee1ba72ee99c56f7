"""The settings of the page for browsers, ``[page]`` of the daemon's file."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.config.addresses import require_listen
from sentinel.config.settings_toml import setting


@dataclass(frozen=True, slots=True)
class Page:
    """The read-only page for browsers. It is off until ``listen`` says where it is served."""

    listen: str = setting(
        "",
        'where the page is served: "unix:/run/sentinel-page/page.sock", or as "127.0.0.1:9479"; empty: nowhere',
    )
    hosts: list[str] = setting(
        [],
        "names by which browsers reach the page, besides localhost and the address of listen; requests for another name are "
        "refused, or any web site could read the page through a browser of yours",
    )
    user_header: str = setting(
        "",
        'header in which a reverse proxy names the person who asks, as "X-Remote-User"; empty: no header is believed',
    )
    proxies: list[str] = setting(
        [],
        'from whom that header is believed: addresses, networks ("10.1.0.0/24"), and over a socket accounts ("www-data")',
    )
    tokens: str = setting(
        "",
        "file of tokens, one a line: a name, the token's SHA-256 in hexadecimal, and perhaps the word operator; closed to "
        "other accounts",
        unit="path",
    )
    see: str = setting(
        "own",
        "whose jobs people see who are no operators: their own, as on the command line, or all",
        words=("own", "all"),
    )
    racks: str = setting(
        "",
        r"expression whose first group in a node's name is its rack, as '^(r\d+)-'; empty: nodes are grouped by the switch "
        "that Slurm names, or else in order of their names",
    )
    deadline_s: float = setting(
        15.0, "one page, from its request to its last byte: as long as a request of the command line", unit="s", least=1
    )
    connections: int = setting(256, "open at once; a browser has up to six", least=4)

    def check_loaded(self) -> None:
        if self.listen:
            require_listen("listen", self.listen, socket=True)
