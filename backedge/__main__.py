"""`python -m backedge` is the command `backedge`."""

import sys

from backedge_command import main

sys.exit(main())
