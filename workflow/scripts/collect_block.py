"""Judge one block's windows: `python workflow/scripts/collect_block.py --study FILE --block NAME --output TABLE`."""

import sys

from specjoule.cli.jobs import collect_main

if __name__ == "__main__":
    sys.exit(collect_main())
