"""Uniform spreading: how the shape of a confidence trace limits greedy recovery of a target.

Uses only numpy and scipy. Functions of q take probabilities, functions of y take y = log q in nats. Scalars
and arrays of any shape are accepted and keep their shape. Errors are subclasses of ``ValueError``.
"""

from orderlens.theory._inputs import CompetitorError, NoiseError, ProbabilityError, ProfileError, TheoryError
from orderlens.theory.competitors import (
    d1_k,
    d2_k,
    log_failure_k,
    log_success_k,
    log_success_masses,
    success_k,
    success_masses,
    zipf_masses,
)
from orderlens.theory.concavity import (
    BestProfile,
    CriticalPoint,
    Interval,
    best_profile,
    concavity_margin,
    concavity_ratio,
    critical_point,
    critical_sigma,
    violation_intervals,
)
from orderlens.theory.estimate import FitBin, NoiseFit, fit_noise
from orderlens.theory.spreading import (
    CostlyStep,
    SecondOrder,
    SpreadComparison,
    bottlenecks,
    compare_spread,
    jensen_loss,
    log_distortion,
    log_recoverability,
    majorises,
    second_order,
    taylor_radius,
    uniform_log_recoverability,
)
from orderlens.theory.step import d1, d2, inverse_mills, log_failure, log_success, mills_excess, success

__all__ = [
    "BestProfile",
    "CompetitorError",
    "CostlyStep",
    "CriticalPoint",
    "FitBin",
    "Interval",
    "NoiseError",
    "NoiseFit",
    "ProbabilityError",
    "ProfileError",
    "SecondOrder",
    "SpreadComparison",
    "TheoryError",
    "best_profile",
    "bottlenecks",
    "compare_spread",
    "concavity_margin",
    "concavity_ratio",
    "critical_point",
    "critical_sigma",
    "d1",
    "d1_k",
    "d2",
    "d2_k",
    "fit_noise",
    "inverse_mills",
    "jensen_loss",
    "log_distortion",
    "log_failure",
    "log_failure_k",
    "log_recoverability",
    "log_success",
    "log_success_k",
    "log_success_masses",
    "majorises",
    "mills_excess",
    "second_order",
    "success",
    "success_k",
    "success_masses",
    "taylor_radius",
    "uniform_log_recoverability",
    "violation_intervals",
    "zipf_masses",
]
