"""Measure one block of a study: `python workflow/scripts/measure_block.py --study FILE --block NAME`."""

import sys

from specjoule.cli.jobs import measure_main

if __name__ == "__main__":
    sys.exit(measure_main())
