"""What every test needs of its process."""

from __future__ import annotations

import signal

# A shell starts jobs in the background with SIGINT ignored; programs that tests start and interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
