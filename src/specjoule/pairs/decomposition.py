"""Why a ratio is what it is: energy per step against tokens per round, and power against speed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Values = float | npt.NDArray[np.float64]


def ratio_from_rounds(r_e: Values, a_spec: Values) -> Values:
    """Energy ratio from rounds: rho = r_E / A.

    At the same batch n, e = (E/steps)/(n A) on either side and A = 1 for plain decoding, so that the ratio of mean
    energy per step r_E over the tokens committed per request and round A gives rho. Dimensionless.
    """
    return r_e / a_spec


def break_even_committed(r_e: Values) -> Values:
    """Tokens per request and round at which speculation neither saves nor costs energy: A* = r_E."""
    return r_e


def needed_gain(r_e: Values, a_spec: Values) -> Values:
    """Factor by which A must grow to break even at unchanged energy per step: r_E / A; at most 1 where it saves."""
    return r_e / a_spec


def ratio_from_power(power_ratio: Values, speedup: Values) -> Values:
    """Energy ratio from mean power and speed: rho = (P_spec / P_plain) / (X_spec / X_plain). Dimensionless."""
    return power_ratio / speedup
