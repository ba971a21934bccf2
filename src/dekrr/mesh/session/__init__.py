"""One site's side of a run over a mesh: agreement, lockstep, recovery from losses, and a common end.

The only I/O of a session is the checkpoint. The mesh drives a session with a real clock and real links,
`tests/faulty.py` with simulated ones.

- `frames`: the frames that travel. `peers`: the state of a neighbour. `speaking`: the frames to send.
- `greeting`: agreement before the start. `epochs`, `course`: the procedure among the remaining sites.
- `phases`: the table of phases. `session`: the reaction to each frame and to each tick of the clock.
- `journal`: the checkpoint. `events`: the events for listeners. `interpreter`: the application's knowledge of messages.
"""

from .interpreter import Interpreter
from .phases import Phase
from .plan import Plan
from .session import Session

__all__ = ["Interpreter", "Phase", "Plan", "Session"]
