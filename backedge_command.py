"""The entry of the command `backedge`, outside of the package: Ctrl-C may come while that is imported."""

import signal


def main() -> int:
    """Load the command and run it. Until it is loaded, Ctrl-C ends the process at once, without a traceback."""
    reaction = signal.getsignal(signal.SIGINT)
    if reaction is signal.default_int_handler:  # else it is ignored, as in what a shell starts with &
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from backedge.command import main as obey

    signal.signal(signal.SIGINT, reaction)
    return obey()
