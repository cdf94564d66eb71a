"""Where processes wait for each other for as long as it takes."""

import secrets
import socket
import time

_KEY = "t2t/meeting"
# Seconds without a sign of a machine, and between the questions after that, until its connection counts as broken.
_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}
# Seconds that the first process waits for the others to come; Paddle's launcher starts all of them at about one time.
_JOINING = 180
# Seconds that a process outlives another one.
_PATIENCE = 3


class Meeting:
    """Called by every process, it returns when all have called it.

    Gloo ends a process that has waited 30 seconds for another, and Paddle has no setting for that; a checkpoint on a
    slow disk takes longer. So processes meet here before their collectives, at 0.1 ms each time. (Paddle's own store
    would take 90.)

    store: Paddle's TCPStore (set, wait, get), through which the first process tells its address. host: address of the
    first process's machine. Raises RuntimeError in all other processes when one ends, and in the first one when another
    does not come.
    """

    def __init__(self, store, host, rank, world):
        if rank:
            store.wait(_KEY)
            port, token = bytes(store.get(_KEY)).decode().split()
            self._peers = {0: socket.create_connection((host, int(port)))}
            self._peers[0].sendall(token.encode() + rank.to_bytes(4, "big"))
        else:
            self._peers = _invite(store, host, world)
        self._first = rank == 0
        for peer in self._peers.values():
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE.items():
                if hasattr(socket, name):
                    peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def __call__(self):
        if self._first:
            self._hear()
        self._say()
        if not self._first:
            self._hear()

    def _hear(self):
        for number, peer in self._peers.items():
            try:
                ended = not peer.recv(1)
            except OSError:
                ended = True
            if ended:
                raise _ended(number)

    def _say(self):
        for number, peer in self._peers.items():
            try:
                peer.sendall(b".")
            except OSError as error:
                raise _ended(number) from error

    def close(self):
        """Leave for good."""
        for peer in self._peers.values():
            peer.close()


def _ended(number):
    # The launcher should see the process that ended first, and end this one.
    time.sleep(_PATIENCE)
    return RuntimeError(f"process {number} has ended; its log tells why")


def _invite(store, host, world):
    """Connections of the first process by number of the other one."""
    # So that nobody else on the network can pass for a process.
    token = secrets.token_hex(16)
    family = socket.getaddrinfo(host, None)[0][0]
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.bind((host, 0))
        server.listen(world)
        store.set(_KEY, f"{server.getsockname()[1]} {token}")
        peers, end = {}, time.monotonic() + _JOINING
        while len(peers) < world - 1:
            try:
                server.settimeout(max(end - time.monotonic(), 0.01))
                peer, _ = server.accept()
            except socket.timeout:
                absent = ", ".join(str(number) for number in range(1, world) if number not in peers)
                raise RuntimeError(f"of {world} processes, {absent} did not come within {_JOINING} s; their logs, on "
                                   "the machines they are on, tell why") from None
            number = _introduction(peer, token)
            if number is None:
                peer.close()
            else:
                peers[number] = peer
    return peers


def _introduction(peer, token):
    """Number of the process at the other end; None for a stranger."""
    peer.settimeout(10)
    text = b""
    try:
        while len(text) < len(token) + 4:
            part = peer.recv(len(token) + 4 - len(text))
            if not part:
                return None
            text += part
    except OSError:
        return None
    peer.settimeout(None)
    known = secrets.compare_digest(text[:len(token)], token.encode())
    return int.from_bytes(text[len(token):], "big") if known else None
