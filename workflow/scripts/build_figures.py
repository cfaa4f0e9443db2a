"""Build tables and figures: `python workflow/scripts/build_figures.py --study FILE --output DIR [--only NAME]`."""

import sys

from specjoule.cli.jobs import figures_main

if __name__ == "__main__":
    sys.exit(figures_main())
