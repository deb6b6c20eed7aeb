"""Whether this program was told to end.

A handler of a signal runs in the main thread, between any two of its instructions. threading.Event.set() takes the lock
that the same thread holds for a moment in each wait(): one of a thousand waited for itself for ever. A flag takes none.
"""

import signal


class Ending:
    """Told by SIGTERM."""

    told = False

    def __init__(self):
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "told", True))
