"""The command line and the jobs of the workflow."""
