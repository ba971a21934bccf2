"""Lines between sites that a test can hold, cut and mend: proxies on loopback."""

import contextlib
import socket
import threading
import time


class Line:
    """A proxy in front of an address.

    A line that is held carries nothing, while its connections stay open, as when all packets are lost. One that is
    broken closes its connections and lets nobody in until it is mended. One that is cut is cut for good.
    """

    def __init__(self, target):
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open = []
        self._flows, self._admits = threading.Event(), threading.Event()
        self.mend()
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self):
        self._flows.clear()

    def break_off(self):
        self._admits.clear()
        _close(self._open)

    def mend(self):
        self._flows.set()
        self._admits.set()

    def cut(self):
        self._admits.clear()
        _close([self._listener, *self._open])
        self._flows.set()

    def _accept(self):
        while True:
            try:
                one, _ = self._listener.accept()
            except OSError:
                return
            if not self._admits.is_set():
                one.close()
                time.sleep(0.05)
                continue
            threading.Thread(target=self._join, args=(one,), daemon=True).start()

    def _join(self, one):
        self._flows.wait()
        try:
            other = socket.create_connection(self._target)
        except OSError:  # nobody listens there yet
            one.close()
            return
        self._open = [end for end in self._open if end.fileno() >= 0] + [one, other]
        for source, sink in ((one, other), (other, one)):
            threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()
        if not self._admits.is_set():
            _close([one, other])

    def _carry(self, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._flows.wait()
                sink.sendall(data)
        _close([source, sink])


def _close(ends):
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)  # a thread that waits in recv would keep a closed one open
        end.close()
