"""The Unix sockets between a batch server and its readers: messages with file descriptors.

The default address is in the folder of the job, which is private to the job's user.
"""

from __future__ import annotations

import array
import os
import re
import select
import socket
import stat
import struct
from pathlib import Path

from platoon_base.data.batch_memory import MAX_FRAME_BYTES
from platoon_base.errors import ConfigurationError, ProtocolError
from platoon_base.job.files import JobFiles
from platoon_base.system.environment import JOB
from platoon_base.system.job_paths import path_of
from platoon_base.system.process import readable

_LONGEST = 107  # The bytes of sun_path, without its final zero.
_BACKLOG = 256
_CREDENTIALS = struct.Struct("3i")  # The numbers are pid, uid and gid.
_FD = struct.calcsize("i")
_MAX_FDS = 4  # A message should have one; more are received only to close them.
# Plain numbers: the operators of Python's enumerations take longer than the system call.
_NO_SIGNAL, _ROOM = int(socket.MSG_NOSIGNAL), socket.CMSG_SPACE(_MAX_FDS * _FD)
_CLOEXEC, _CUT = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_TRUNC) | int(socket.MSG_CTRUNC)


class Link:
    """One connection; both ends belong to the same user.

    The socket is of type SOCK_SEQPACKET: each message arrives whole and in order. ``pid`` is the
    peer process, 0 if unknown. ``pidfd`` becomes readable when that process ends; it is -1 if there
    is none. ``dead`` is True if the process had already ended: its forked children may hold the
    socket open.
    """

    def __init__(self, sock: socket.socket, pid: int | None = None) -> None:
        self._sock = sock
        sock.setblocking(False)
        of_socket, uid, _ = _CREDENTIALS.unpack(
            sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        if uid != os.geteuid():
            sock.close()
            raise ProtocolError(
                f"refused a connection of user {uid}: batches are shared only between processes of one user"
            )
        self.pid = of_socket if pid is None else pid
        self.pidfd, self.dead = -1, False
        self._writable = select.poll()
        self._writable.register(sock, select.POLLOUT)
        if self.pid > 0 and self.pid != os.getpid():
            try:
                self.pidfd = os.pidfd_open(self.pid)
                self.dead = readable(self.pidfd)  # It may be a zombie.
            except ProcessLookupError:
                self.dead = True
            except OSError:
                pass  # An old kernel has no pidfds: only the socket shows the end of the process.

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def has_room(self) -> bool:
        """Whether the next message fits: Linux reports writable while enough buffer is free."""
        return bool(self._writable.poll(0))

    def send(self, frame: bytes, fd: int = -1) -> bool:
        """Send a message; False if the peer has ended. BlockingIOError if too many are unread."""
        try:
            if fd >= 0:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
                self._sock.sendmsg([frame], rights, _NO_SIGNAL)
            else:
                self._sock.send(frame, _NO_SIGNAL)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def receive(self) -> tuple[bytes, int]:
        """Return the next message and its file descriptor, or -1; an empty message at the end."""
        try:
            frame, found, flags, _ = self._receive()
        except ConnectionResetError:  # The peer closed with unread messages; its own can be read.
            frame, found, flags, _ = self._receive()
        fds = _descriptors(found) if found else []
        if flags & _CUT or len(fds) > 1:
            for fd in fds:
                os.close(fd)
            raise ProtocolError(
                f"refused a message of more than {MAX_FRAME_BYTES} bytes, or with more than one file descriptor"
            )
        return frame, fds[0] if fds else -1

    def receive_plain(self) -> bytes:
        """Return the next message, empty at the end; the kernel drops its file descriptors."""
        try:
            return self._sock.recv(MAX_FRAME_BYTES)
        except ConnectionResetError:
            return self._sock.recv(MAX_FRAME_BYTES)

    def _receive(self) -> tuple[bytes, list[tuple[int, int, bytes]], int, object]:
        return self._sock.recvmsg(MAX_FRAME_BYTES, _ROOM, _CLOEXEC)

    def close(self) -> None:
        self._sock.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def _descriptors(messages: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in messages:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % _FD])
    return found.tolist()


def listen_at(address: str) -> socket.socket:
    """Open a socket for this user's processes; replace the socket of a dead server."""
    _require_short(address)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        if _is_socket(address):
            if _is_listening(address):
                raise ConfigurationError(
                    f"another batch server listens at {address}: close it first, or give this one another name"
                )
            remove_socket(address)
        sock.bind(address)
        os.chmod(address, 0o600)  # No process can connect before `listen`.
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except ConfigurationError:
        sock.close()
        raise
    except OSError as exc:
        sock.close()
        raise ConfigurationError(
            f"a batch server cannot listen at {address!r} ({exc.strerror}): pass a path in a "
            "folder that you can write to"
        ) from exc
    return sock


def connect_link(address: str) -> Link | None:
    """Connect to a server; None if there is none, or only forked children of a dead server."""
    _require_short(address)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.connect(address)
        link = Link(sock)
        if not link.dead:
            return link
        link.close()
        return None
    except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
        sock.close()
        return None
    except OSError as exc:
        sock.close()
        raise ConfigurationError(
            f"cannot connect to a batch server at {address!r} ({exc.strerror}): pass the path that the server has"
        ) from exc


def remove_socket(address: str) -> None:
    if _is_socket(address):
        Path(address).unlink(missing_ok=True)


def _is_socket(address: str) -> bool:
    try:
        status = os.lstat(address)
    except OSError:
        return False
    return stat.S_ISSOCK(status.st_mode) and status.st_uid == os.geteuid()


def _is_listening(address: str) -> bool:
    link = connect_link(address)
    if link is not None:
        link.close()
    return link is not None


def _require_short(address: str) -> None:
    if not 0 < len(os.fsencode(address)) <= _LONGEST:
        raise ConfigurationError(
            f"got the address {address!r}: the path of a Unix socket must have 1 to {_LONGEST} "
            "bytes; set TMPDIR to a folder with a shorter path, or use a shorter name"
        )


_NAME = re.compile(r"[0-9A-Za-z._-]{1,40}")


def batch_address(address: str | None = None, name: str = "batches") -> str:
    """Return the path of a batch server's socket; a given ``address`` takes precedence."""
    if address is not None:
        return os.path.abspath(address)
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"got the name {name!r} for a batch server: use up to 40 letters, digits, '.', '_', '-'"
        )
    folder = os.environ.get(JOB)
    if not folder:
        raise ConfigurationError(
            "there is no job to which a batch server could belong: start with `platoon launch`, "
            "or pass the same address to server and readers, a path such as /tmp/me/batches. To "
            "load ahead without a server use load_ahead"
        )
    return str(path_of(os.path.abspath(folder), "batches", server=name))


def report_failure(folder: str, text: str, keep: bool = False) -> None:
    """Record that a job's server has failed; with ``keep`` an earlier report stays."""
    path = path_of(folder, "server_failure")
    if keep and os.path.exists(path):
        return
    Path(f"{path}.new").write_text(text, errors="backslashreplace")
    os.replace(f"{path}.new", path)


def failure_of_server(address: str) -> str:
    """Return the error of the server for an address; empty if no failure is known."""
    try:
        return path_of(os.path.dirname(address), "server_failure").read_text(errors="replace")
    except OSError:
        return ""


def expected_readers(address: str | None) -> int:
    """Return the number of workers that a server expects by default."""
    folder = os.environ.get(JOB)
    return 1 if address is not None or not folder else JobFiles.read(folder).size
