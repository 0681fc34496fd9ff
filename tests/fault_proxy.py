"""A proxy on loopback in front of a server, which spoils requests as networks and clouds do."""

import socket
import threading
from contextlib import suppress


class FaultProxy:
    """Forwards TCP to `target`. `status` answers every request so instead; `cuts` cuts connections.

    status: None, or an HTTP status such as 503, while it is set.
    cut_after: None, or bytes of a request after which its connection is cut; `cuts` says how many times more.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.status: int | None = None
        self.body = b"{}"
        self.cut_after: int | None = None
        self.cuts = 0
        self.requests = 0  # answered by `status`
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self.target))
        except OSError:
            client.close()
            return
        with client, server, suppress(OSError):
            threading.Thread(target=self._back, args=(server, client), daemon=True).start()
            sent = 0
            while data := client.recv(65536):
                if self.status:
                    self.requests += 1
                    head = (
                        f"HTTP/1.1 {self.status} Fault\r\nContent-Length: {len(self.body)}\r\nConnection: close\r\n\r\n"
                    )
                    client.sendall(head.encode() + self.body)
                    client.shutdown(socket.SHUT_WR)
                    return
                sent += len(data)
                if self.cuts and self.cut_after is not None and sent > self.cut_after:
                    self.cuts -= 1
                    return
                server.sendall(data)

    @staticmethod
    def _back(server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                client.sendall(data)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
