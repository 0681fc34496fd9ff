"""What runs around an untrusted program: the inside of `tasks.sandbox`, started as a script of its own.

    parent ── this script ─(new user*, mount, pid, net, ipc, uts namespaces)─ pid 1 ── the program

It reads one JSON object from standard input (source, nonce, limits), builds the jail and runs the source in
it. The program sees: no network but a loopback that is down, no process but its own, no environment, no
/proc, no /dev, Python's library read-only, and an empty /tmp in memory that vanishes with it. Its user owns
nothing and has no capability. When pid 1 ends, the kernel kills whatever the program started. Only if the
source runs to its end without an exception does this script write the nonce to the verdict descriptor:
leaving early is never a pass.

(*) As root the namespaces come without a user namespace, and the program runs under a user id that nobody
has: the kernel does not count processes of the real root, so RLIMIT_NPROC would otherwise be void.

Only the standard library, and nothing of this project: the script must start in milliseconds under `python
-I -S`.
"""

import ctypes
import json
import os
import platform
import resource
import signal
import sys
import sysconfig
import traceback
from typing import Any

SETUP_FAILED = 97  # exit status: the jail could not be built and nothing was run
UNUSED_UID = 2_000_000_000  # and above: far from any user, so that its process count is this program's alone

# Linux ABI, from the kernel's uapi headers: sched.h, mount.h, prctl.h, capability.h.
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000
MNT_DETACH = 2
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 0x1, 0x2, 0x4
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
CAPABILITY_VERSION_3 = 0x20080522
SYS_MOUNT_SETATTR = 442  # the same number on every architecture
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

NOT_ALLOWED = {
    *("os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.system", "subprocess.Popen"),
    *("os.kill", "os.killpg", "signal.pthread_kill"),
    *("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"),
}

libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    request = json.load(sys.stdin)
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        _enter_namespaces()
        _become_pid_one()
        _enter_empty_root(request["root"], request["file_bytes"])
        _drop_privileges()
    except OSError as error:
        print(f"{error.strerror} ({' '.join(map(str, error.args[2:])) or error.filename})", flush=True)
        os._exit(SETUP_FAILED)
    program = os.fork()
    if program == 0:
        _run_program(request)
    _wait_for(program)


def _run_program(request: dict[str, Any]) -> None:
    """Run the source under its limits and report the nonce only if it comes to its end. Never returns."""
    status = 1
    try:
        _limit(request)
        sys.argv = ["program"]
        os.environ.clear()  # the interpreter itself adds its locale
        sys.addaudithook(_fail_at_once)
        code = compile(request.pop("source"), "program", "exec")
        exec(code, {"__name__": "__main__"})
        sys.stdout.flush()
        os.write(request["verdict_fd"], request["nonce"].encode())
        status = 0
    except BaseException:  # SystemExit too: an early exit must not skip the tests that follow
        traceback.print_exc(file=sys.__stdout__)
        sys.__stdout__.flush()  # type: ignore[union-attr]
    finally:
        os._exit(status)


def _fail_at_once(event: str, arguments: tuple[Any, ...]) -> None:
    """End the program at its first try of what no test needs. The kernel would contain it as well; this says
    so.

    Not an exception: the program could catch it and pass. (Audit events:
    docs.python.org/3/library/audit_events)
    """
    if event in NOT_ALLOWED:
        os.write(1, f"{event} is not allowed\n".encode())
        os._exit(1)


def _limit(request: dict[str, Any]) -> None:
    cpu_seconds = int(request["seconds"]) + 1
    for which, most in (
        (resource.RLIMIT_AS, request["memory_bytes"]),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, request["file_bytes"]),
        (resource.RLIMIT_NPROC, request["processes"]),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(which, (most, most))


def _enter_namespaces() -> None:
    _die_with_parent()
    namespaces = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
    uid, gid = os.getuid(), os.getgid()
    if uid == 0:
        _call("unshare", namespaces)
    else:
        _call("unshare", namespaces | CLONE_NEWUSER)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    _die_with_parent()  # a change of credentials cleared it


def _become_pid_one() -> None:
    """Go on as the first process of the new pid namespace; the process outside only waits for it."""
    child = os.fork()
    if child:
        _wait_for(child)
    _die_with_parent()


def _enter_empty_root(root: str, file_bytes: int) -> None:
    """A file system that holds Python's libraries, read-only, and a small /tmp."""
    _mount(None, "/", None, MS_REC | MS_PRIVATE)
    _mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for directory in _library_directories():
        inside = root + directory
        if os.path.islink(directory):
            os.makedirs(os.path.dirname(inside), exist_ok=True)
            os.symlink(os.readlink(directory), inside)
        else:
            os.makedirs(inside, exist_ok=True)
            _mount(directory, inside, None, MS_BIND | MS_REC)
    os.makedirs(f"{root}/tmp", exist_ok=True)
    _make_read_only(root)
    _mount(
        "tmpfs",
        f"{root}/tmp",
        "tmpfs",
        MS_NOSUID | MS_NODEV,
        f"size={16 * file_bytes},nr_inodes=256,mode=1777",
    )
    os.chdir(root)
    machine = platform.machine()
    if machine not in SYS_PIVOT_ROOT:
        raise OSError(0, f"no system call number of pivot_root is known for {machine}", "pivot_root")
    _call("syscall", SYS_PIVOT_ROOT[machine], b".", b".")
    _call("umount2", b".", MNT_DETACH)
    os.chdir("/tmp")


def _library_directories() -> list[str]:
    """Where the standard library and the shared objects behind it lie; outer directories first."""
    paths = sysconfig.get_paths()
    wanted = {"/lib", "/lib64", "/usr/lib", "/usr/lib64", paths["stdlib"], paths["platstdlib"]}
    wanted |= {f"{sys.base_prefix}/lib", f"{sys.base_exec_prefix}/lib"}
    kept: list[str] = []
    for directory in sorted(path for path in wanted if os.path.isdir(path)):
        if not any(directory.startswith(f"{outer}/") for outer in kept):
            kept.append(directory)
    return kept


def _drop_privileges() -> None:
    if os.getuid() == 0:
        nobody = UNUSED_UID + int.from_bytes(os.urandom(3), "little")
        os.setgroups([])
        os.setgid(nobody)
        os.setuid(nobody)
    _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    _call("capset", header, (ctypes.c_uint32 * 6)())
    _call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)  # the program must not trace the process that waits for it
    _die_with_parent()


def _make_read_only(root: str) -> None:
    attributes = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV
    mount_attr = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)  # set, clear, propagation, user namespace
    size = ctypes.c_size_t(ctypes.sizeof(mount_attr))
    _call("syscall", SYS_MOUNT_SETATTR, AT_FDCWD, root.encode(), AT_RECURSIVE, mount_attr, size)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [text and text.encode() for text in (source, target, kind)]
    _call("mount", *encoded, ctypes.c_ulong(flags), options and options.encode())


def _die_with_parent() -> None:
    _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _wait_for(child: int) -> None:
    """Reap everything until `child` has ended, then leave with its status. Never returns."""
    while True:
        pid, status = os.wait()
        if pid == child:
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _call(name: str, *arguments: Any) -> None:
    if getattr(libc, name)(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


if __name__ == "__main__":
    main()
