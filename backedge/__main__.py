"""`python -m backedge` is the command `backedge`."""

import sys

from backedge.command import main

sys.exit(main())
