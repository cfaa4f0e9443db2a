"""Where blocks run: a site's queue and boards, deadlines, and the order in which blocks are submitted."""
