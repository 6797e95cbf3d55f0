"""What every test needs of its process."""

from __future__ import annotations

import signal

from hypothesis import settings

# A shell starts jobs in the background with SIGINT ignored; programs that tests start and interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Without a deadline of 200 ms for an example, which a busy machine misses.
settings.register_profile("meshwright", deadline=None)
settings.load_profile("meshwright")
