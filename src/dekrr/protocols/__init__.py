"""Node procedures: what one site does, as a generator that never touches a socket.

A procedure yields an outbox, a message for each neighbour it has something to say to, and is sent the inbox
of what its neighbours said in the same exchange. All sites of a run go through the same number of exchanges.
Who carries the messages is the business of `dekrr.networks`.
"""
