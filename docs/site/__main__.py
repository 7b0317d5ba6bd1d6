"""Build the documentation as a site: `python -m docs.site [FOLDER]` (default: build/site), or `make site`."""

import sys
from pathlib import Path

from docs.site.build import ROOT, build

if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "site"
    site = build(folder)
    for link in site.broken:
        print(f"broken link: {link}", file=sys.stderr)
    print(f"{len(site.pages)} pages: {(folder / 'index.html').resolve().as_uri()}")
    sys.exit(1 if site.broken else 0)
