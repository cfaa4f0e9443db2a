"""Free ports, chosen per job and held until the server takes them."""

from __future__ import annotations

import socket
from dataclasses import dataclass

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Ports:
    """The two ports of a launch: HTTP, and the process group's rendezvous."""

    http: int
    nccl: int


class HeldPorts:
    """Ports bound but not listened on, so that no other job of the node is given the same ones meanwhile."""

    def __init__(self, count: int = 2) -> None:
        self._sockets: list[socket.socket] = []
        try:
            for _ in range(count):
                held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                self._sockets.append(held)
                held.bind((HOST, 0))
        except OSError:
            self.release()
            raise
        self.numbers: tuple[int, ...] = tuple(s.getsockname()[1] for s in self._sockets)

    @property
    def ports(self) -> Ports:
        """The held ports, as a launch takes them."""
        return Ports(http=self.numbers[0], nccl=self.numbers[1])

    def release(self) -> None:
        """Give the ports up; done just before the server binds them."""
        for held in self._sockets:
            held.close()
        self._sockets.clear()


def is_free(port: int) -> bool:
    """Say whether a port of the loopback can be bound now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
