"""Meters: the sampler process and its sources, the energy of a window, calibration, boards and clocks."""
