"""Figures of the write-up. Modules here only draw: every number comes from the analysis."""
