"""The entry of the command `backedge`, outside of the package: Ctrl-C may come while that is imported."""

import signal


def main() -> int:
    """Load the command and run it."""
    end_at_ctrl_c()
    from backedge.command import main as obey

    raise_at_ctrl_c()
    return obey()


def end_at_ctrl_c() -> None:
    """While modules are loaded, Ctrl-C ends the process at once, without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Else it is ignored, as in what a shell starts with &.
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def raise_at_ctrl_c() -> None:
    """Once they are loaded, Ctrl-C raises `KeyboardInterrupt` again."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
