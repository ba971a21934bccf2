"""One site's side of a run over a mesh: agreement, keeping in step, surviving losses, and stopping together.

A session does no I/O but to write its checkpoint. The mesh drives it with a real clock and real links, and
`dekrr.testing.faulty` with simulated ones.

- `frames`: what travels. `peers`: what is known of a neighbour. `speaking`: what is sent to it.
- `greeting`: agreement before the start. `epochs`, `course`: the procedure among the sites that are left.
- `phases`: the table of phases. `session`: what is done about each frame and each tick of the clock.
- `journal`: the checkpoint. `events`: what happened. `interpreter`: what the application tells about its messages.
"""

from .interpreter import Interpreter
from .phases import Phase
from .plan import Plan
from .session import Session

__all__ = ["Interpreter", "Phase", "Plan", "Session"]
