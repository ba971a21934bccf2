"""Two network namespaces with a path between them that loses packets: what netem would do, by two TUN devices.

A thread reads IP packets from one device and writes them to the other, or drops them, or holds them back for a while.
"""

import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import threading
import time

_SET, _TUN, _NO_INFO = 0x400454CA, 0x0001, 0x1000


class LossyPath:
    """A path between two namespaces.

    Parameters
    ----------
    spaces : pair of str
        Names of namespaces that exist.
    addresses : pair of str
        Of their ends of the path.
    loss : float
        The share of packets, either way, that is lost.
    delay : float
        Seconds that a packet takes.
    """

    def __init__(self, spaces, addresses, *, loss, delay=0.0, seed=0):
        self.carried = self.lost = 0
        self._loss, self._delay, self._rng = loss, delay, random.Random(seed)
        self._ends = [_device(space, f"dkl{i}") for i, space in enumerate(spaces)]
        for i, (space, here, there) in enumerate(zip(spaces, addresses, reversed(addresses), strict=True)):
            run("ip", "-n", space, "addr", "add", here, "peer", there, "dev", f"dkl{i}")
            run("ip", "-n", space, "link", "set", f"dkl{i}", "up")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def close(self):
        self._over.set()
        self._thread.join()
        for end in self._ends:
            os.close(end)

    def _carry(self):
        waiting, count = [], 0
        one, other = self._ends
        beyond = {one: other, other: one}
        while not self._over.is_set():
            pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 0.2
            for end in select.select(self._ends, [], [], min(pause, 0.2))[0]:
                packet = os.read(end, 1 << 16)
                if self._rng.random() < self._loss:
                    self.lost += 1
                    continue
                count += 1
                heapq.heappush(waiting, (time.monotonic() + self._delay, count, beyond[end], packet))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, end, packet = heapq.heappop(waiting)
                os.write(end, packet)
                self.carried += 1


def run(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True)


def _device(space, name):
    """Make a TUN device in this thread's namespace and move it to another; return its descriptor."""
    device = os.open("/dev/net/tun", os.O_RDWR)
    own = f"{name}-{os.getpid()}"[:15]
    fcntl.ioctl(device, _SET, struct.pack("16sH14x", own.encode(), _TUN | _NO_INFO))
    run("ip", "link", "set", own, "netns", space, "name", name)
    return device
