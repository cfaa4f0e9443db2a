"""Write the report's pages: `python workflow/scripts/build_report_pages.py --study FILE --output DIR`."""

import sys

from specjoule.report.build import pages_main

if __name__ == "__main__":
    sys.exit(pages_main())
