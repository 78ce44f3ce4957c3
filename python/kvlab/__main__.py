"""python3 -m kvlab COMMAND ...: the command line."""

import sys

from kvlab.cli import main

sys.exit(main())
