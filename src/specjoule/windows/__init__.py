"""Raw windows: their schema, how rows are built, judged and collected."""
