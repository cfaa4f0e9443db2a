"""Between sites and releases: merging collected studies, comparing two of them, bundling one for others."""
