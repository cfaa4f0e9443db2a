"""The configuration of a study and its catalogues."""
