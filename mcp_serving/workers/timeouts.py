"""How long workers wait for each other and for the channel layer, in seconds."""

PEER = 3.0
"""After this time without a message, a worker that was pinged is taken to be gone."""

PING_INTERVAL = 1.0
"""Between two pings of a worker that serves a request of this one. No ping is sent while both send other messages."""

GONE_PING_INTERVAL = 10.0
"""Between two pings of a worker that was taken to be gone, while requests for its sessions arrive."""

SEND = 2.0
"""For one message. Then the layer counts as failing."""

CHANNEL_FULL = 1.0
"""For room in the channel of another worker, before a new request is refused."""

START_DURING_OUTAGE = 0.2
"""For the layer at the start of a handler, if the layer did not answer before. The handler joins later."""

LEAVE = 0.5
"""For telling the other workers that this one leaves."""

REJOIN_INTERVAL = 60.0
"""Between two attempts to join the group of workers again. A layer that has restarted has forgotten its groups."""

RECEIVE_RETRY = 0.1
"""Between two attempts to receive after a failure."""

JOIN_PIECES = 0.002
"""For further pieces of a response that go into the same message. An event and the end of its stream are two pieces."""

JOIN_HEADERS = 0.02
"""For the first piece of the body that goes into the same message as the headers. Most calls are answered earlier."""
