"""Fits factors of the planner to published runs (bench/published.py)."""
import collections
import math

import numpy as np
from figures import family, measured_s

HUBER = 0.1  # log errors above it count by their size, not by its square
NOISE = 0.1  # standard deviation of a log error; sets the default weight of the prior
STEP = 0.02  # of the finite differences, in the logarithm of a factor


def source_weights(families):
    """One over sqrt(n) for a row of a source of n rows."""
    counts = collections.Counter(families)
    return np.array([1 / math.sqrt(counts[f]) for f in families])


class Fit:
    """Fits the factors `start` to log seconds. `model` takes a list of {name: value} and returns log seconds, a row for each."""

    def __init__(self, model, measured, start, prior, strength):
        self.model, self.measured, self.strength = model, np.asarray(measured), strength
        self.names = list(start)
        self.start = np.log([start[n] for n in self.names])
        self.inverse = np.array([1 / prior[n] ** 2 for n in self.names])

    def values(self, x):
        return {n: float(v) for n, v in zip(self.names, np.exp(x))}

    def loss(self, x, residuals, weights):
        size = abs(residuals)
        huber = np.where(size <= HUBER, size**2 / 2, HUBER * (size - HUBER / 2))
        return float(weights @ huber + self.strength * self.inverse @ (x - self.start) ** 2)

    def slopes(self, x, logs):
        moved = [self.values(x + STEP * unit) for unit in np.eye(len(x))]
        return ((self.model(moved) - logs) / STEP).T

    def direction(self, x, residuals, slopes, weights, damping):
        """A step of Gauss-Newton with the weights that make Huber's loss a sum of squares at this place."""
        w = weights * np.minimum(1, HUBER / np.maximum(abs(residuals), 1e-12))
        pull = 2 * self.strength * self.inverse
        left = slopes.T @ (w[:, None] * slopes) + np.diag(pull)
        right = slopes.T @ (w * residuals) + pull * (x - self.start)
        return -np.linalg.solve(left + damping * np.diag(np.diag(left)), right)

    def run(self, weights, iterations, refresh, say=lambda text: None):
        """Returns the factors' logarithms. Between fresh finite differences, Broyden's update corrects the slopes."""
        x = self.start.copy()
        logs = self.model([self.values(x)])[0]
        best = self.loss(x, logs - self.measured, weights)
        say(f"start: loss {best:.5f}")
        slopes, damping = None, 1e-3
        for i in range(iterations):
            if i % refresh == 0:
                slopes = self.slopes(x, logs)
            for _ in range(3):
                # Two lengths of step at a time keep both processes busy.
                steps = [self.direction(x, logs - self.measured, slopes, weights, d) for d in (damping, 30 * damping)]
                tried = self.model([self.values(x + s) for s in steps])
                losses = [self.loss(x + s, t - self.measured, weights) for s, t in zip(steps, tried)]
                k = int(np.argmin(losses))
                if losses[k] < best:
                    break
                damping *= 1000
            else:
                say(f"iteration {i + 1}: no step lowers the loss")
                return x
            step, gain = steps[k], best - losses[k]
            slopes = slopes + np.outer(tried[k] - logs - slopes @ step, step) / (step @ step)
            x, logs, best, damping = x + step, tried[k], losses[k], max(damping * (0.1 if k == 0 else 3), 1e-6)
            say(f"iteration {i + 1}: loss {best:.5f}")
            if gain < 1e-4 * best:
                break
        return x


def fit_all(model, rows, start, prior, strength, iterations, refresh, say=print):
    """Log seconds of each source under factors that were fitted to the others, and the factors that are fitted to all."""
    families = [family(r["source"]) for r in rows]
    fit = Fit(model, np.log([measured_s(r) for r in rows]), start, prior, strength)
    left_out = np.full(len(rows), math.nan)
    for name in sorted(set(families)):
        out = np.array([f == name for f in families])
        weights = np.where(out, 0.0, source_weights(families))
        x = fit.run(weights, iterations, refresh)
        left_out[out] = model([fit.values(x)])[0][out]
        say(f"fitted without {name}: " + ", ".join(f"{n} {v:.4g}" for n, v in fit.values(x).items()))
    x = fit.run(source_weights(families), iterations, refresh, say)
    return left_out, fit.values(x)
