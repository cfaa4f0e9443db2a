"""Name the tables and figures of a study: `python workflow/scripts/say_what_was_made.py --study FILE`."""

import sys

from specjoule.cli.jobs import made_main

if __name__ == "__main__":
    sys.exit(made_main())
