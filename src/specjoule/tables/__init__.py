"""Tables of the write-up: what each shows, and how it is written as CSV, Markdown and LaTeX."""
