"""Programs that mean harm end as failed examples, and nothing of them is left on the machine.

Each is written so that it comes to its end, and so passes, only where the harm was possible.
"""

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks import sandbox
from tasks.sandbox import Limits, run

LIMITS = Limits(seconds=2.0)

# `libc` programs go round the audit hook, so that it is the kernel's jail which has to hold.
HOSTILE = {
    "fork bomb": "import os\nwhile True:\n    os.fork()",
    "fork bomb through libc": """
import ctypes, time
libc, started = ctypes.CDLL(None), 0
while started < 500 and (child := libc.fork()) > 0:
    started += 1
if started < 500 and child == 0:
    time.sleep(600)
assert started == 500, started
""",
    "memory": "kept = [bytearray(2**24) for _ in range(40)]",
    "endless loop": "while True:\n    pass",
    "writing outside": "open({outside!r}, 'w').write('mine')",
    "writing into the library": "import os\nopen(os.__file__, 'a').write('# mine')",
    "filling the disk": "for i in range(1000):\n    open(f'/tmp/{{i}}', 'wb').write(bytes(2**20))",
    "reading the environment": """
import os
assert os.environ or os.path.exists('/proc/self/environ') or os.path.exists('/etc/passwd'), 'nothing to see'
""",
    "network": "import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=1)",
    "network through libc": """
import socket
s = socket.socket()
import ctypes, struct
address = struct.pack('=HH', 2, socket.htons({port})) + socket.inet_aton('127.0.0.1') + bytes(8)
assert ctypes.CDLL(None).connect(s.fileno(), address, 16) == 0, 'not connected'
""",
    "killing the parent": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
    "killing all through libc": """
import ctypes
libc = ctypes.CDLL(None)
for signal in (15, 9):
    for pid in (1, {parent}, -1):
        libc.kill(pid, signal)
assert False, 'still here'
""",
    "huge output": "while True:\n    print('x' * 10000)",
    "exit status 0": "import os\nos._exit(0)",
    "sys.exit": "import sys\nsys.exit(0)",
    "an exit that hides in a handler": """
import atexit, os, sys
atexit.register(os._exit, 0)
sys.exit()
""",
    "signal handlers": """
import signal
for number in set(signal.valid_signals()) - {{signal.SIGKILL, signal.SIGSTOP}}:
    signal.signal(number, signal.SIG_IGN)
while True:
    pass
""",
    "a daemon that stays": """
import ctypes, time
libc = ctypes.CDLL(None)
if libc.fork() == 0:
    libc.setsid()
    for fd in range(64):
        libc.close(fd)
    time.sleep(600)
raise SystemExit(0)
""",
    "recursion": "def f():\n    return f()\nf()",
    "closed descriptors": "import os\nos.closerange(0, 64)",
    "a wrong answer": "assert 1 + 1 == 3",
    "no Python": "def (",
}


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def jail_processes() -> list[str]:
    """Command lines of processes that a jail started and that live (a zombie has none)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_text()
                parents = (entry / "status").read_text()
            except OSError:
                continue
            if str(sandbox.JAIL) in command and f"NSsid:\t{os.getsid(0)}" not in parents:
                found.append(entry.name)
    return found


@pytest.mark.usefixtures("jail")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_programs_fail_and_leave_nothing(
    name: str, tmp_path: Path, listener: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    outside = tmp_path / "outside"
    before = set(jail_processes())
    source = HOSTILE[name].format(outside=str(outside), port=listener, parent=os.getpid())
    outcome = run(source, LIMITS)
    assert not outcome.passed
    assert outcome.reason
    assert len(outcome.output) <= LIMITS.output_bytes
    assert not outside.exists()
    assert list((tmp_path / "temporary").iterdir()) == []
    left, deadline = set(jail_processes()) - before, time.monotonic() + 10
    while left and time.monotonic() < deadline:  # other tests start jails too: theirs end by themselves
        time.sleep(0.1)
        left &= set(jail_processes())
    assert not left


@pytest.mark.usefixtures("jail")
def test_an_honest_program_passes_and_sees_an_empty_world() -> None:
    source = """
import os, math, re, collections, hashlib, typing
open('/tmp/notes', 'w').write('private')
assert os.listdir('/tmp') == ['notes'] and dict(os.environ) == {} and not os.path.exists('/proc/1')
assert os.getuid() != 0 and math.prod([2, 3]) == 6
print('done')
"""
    outcome = run(source, Limits(seconds=10))
    assert outcome.passed, outcome
    assert outcome.output == "done\n"


@pytest.mark.usefixtures("jail")
def test_the_reason_says_what_happened() -> None:
    assert run("while True: pass", Limits(seconds=0.5)).reason == "still running after 0.5 s"
    assert run("print('x' * 10**6)", LIMITS).reason == "wrote more than 65536 bytes"
    assert run("1 / 0", LIMITS).reason == "ZeroDivisionError: division by zero"
    assert run("import os\nos.kill(1, 9)", LIMITS).reason == "os.kill is not allowed"
    assert run("x = bytearray(2**30)", LIMITS).reason == "MemoryError"


def test_without_a_jail_nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    proof = tmp_path / "ran"
    with pytest.raises(sandbox.SandboxError, match="darwin"):
        run(f"open({str(proof)!r}, 'w')")
    assert not proof.exists()


def test_a_jail_that_cannot_be_built_is_an_error_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "jail.py"
    sabotaged = sandbox.JAIL.read_text().replace('"x86_64": 155, "aarch64": 41', "")
    assert sabotaged != sandbox.JAIL.read_text()
    broken.write_text(sabotaged)
    monkeypatch.setattr(sandbox, "JAIL", broken)
    with pytest.raises(sandbox.SandboxError, match="isolated"):
        run("print('it ran')")
