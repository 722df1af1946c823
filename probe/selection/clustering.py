# SPDX-License-Identifier: Apache-2.0
"""Clustering of basic-block vectors: projection, k-means for every k, and the BIC rule.

A clean implementation of what SimPoint 3.2 does (Sherwood, Perelman, Hamerly and Calder, ASPLOS 2002;
Hamerly, Perelman, Lau and Calder, "SimPoint 3.0: Faster and More Flexible Program Phase Analysis", JILP 7,
2005): rows scaled to sum one, a random projection to a few dimensions, k-means from several seeds, and the
smallest k whose score is good enough.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from probe.formats.arrays import FloatArray, IntArray

VARIANCE_FLOOR = 1e-12
"""Smallest variance the likelihood may divide by, where the resolution is zero."""


@dataclass(frozen=True)
class Clustering:
    """One k-means result: `labels` gives each point's cluster (0..k-1), a higher `bic` is better."""

    k: int
    seed: int
    labels: IntArray
    inertia: float
    bic: float


def project(vectors: Any, dimensions: int, seed: int) -> FloatArray:
    """Project L1-normalised rows to `dimensions` with a fixed uniform [-1, 1] matrix.

    `vectors` is a scipy.sparse CSR matrix or array (N x B) without negative entries; the result is
    N x dimensions. An empty row becomes the origin. The dense memory used is (N + B) x dimensions floats: the
    rows are divided by their sums after the product, so that no second copy of the sparse data is made.
    """
    matrix = np.random.default_rng(seed).uniform(-1.0, 1.0, size=(vectors.shape[1], dimensions))
    totals = np.asarray(vectors.sum(axis=1), dtype=np.float64).reshape(-1, 1)
    product = np.asarray(vectors @ matrix, dtype=np.float64)
    return np.divide(product, totals, out=np.zeros_like(product), where=totals > 0)


def variance_floor(resolution: float) -> float:
    """Variance per projected coordinate of two rows that differ by `resolution` (L1, 1 = everything).

    A difference of r moved between two blocks changes each projected coordinate by (u1 - u2) r / 2 with u
    uniform in [-1, 1]: variance r^2 / 6.
    """
    return max(resolution * resolution / 6.0, VARIANCE_FLOOR)


def bic_score(counts: IntArray, inertia: float, dimensions: int, floor: float) -> float:
    """Bayesian information criterion of a k-means result under equal spherical Gaussians.

    Pelleg and Moore, "X-means", ICML 2000, with the variance per coordinate:
    sum R_i log(R_i / R) - R d / 2 log(2 pi s^2) - inertia / (2 s^2) - p / 2 log R, p = (k - 1) + d k + 1.
    s^2 = inertia / (d (R - k)), but at least `floor`: clusters that differ by less than the resolution then
    cost parameters and gain no likelihood.
    """
    points = int(counts.sum())
    filled = counts[counts > 0].astype(np.float64)
    k = len(filled)
    variance = max(inertia / (dimensions * max(points - k, 1)), floor)
    likelihood = (
        float(np.sum(filled * np.log(filled / points)))
        - points * dimensions / 2.0 * float(np.log(2.0 * np.pi * variance))
        - inertia / (2.0 * variance)
    )
    parameters = (k - 1) + dimensions * k + 1
    return likelihood - parameters / 2.0 * float(np.log(points))


def sweep(
    points: FloatArray, *, max_k: int, seeds: Sequence[int], iterations: int, resolution: float
) -> list[Clustering]:
    """k-means for every k from 1 to `max_k` (at most the number of distinct points) and every seed.

    Every k is tried because BIC is not monotone in k: a bisection misses good ones. One thread, so that sums
    are formed in one order and the result depends on the seeds alone.
    """
    # Before its threads are limited.
    kmeans = _kmeans()
    if len(points) == 0:
        return []
    distinct = len(np.unique(np.round(points, 12), axis=0))
    floor = variance_floor(resolution)
    found: list[Clustering] = []
    with threadpool_limits(limits=1):
        for k in range(1, min(max_k, distinct) + 1):
            for seed in seeds if k > 1 else seeds[:1]:
                model = kmeans(k, n_init=1, max_iter=iterations, random_state=seed, algorithm="lloyd")
                model.fit(points)
                labels = np.asarray(model.labels_, dtype=np.int64)
                counts = np.bincount(labels, minlength=k).astype(np.int64)
                inertia = float(model.inertia_)
                score = bic_score(counts, inertia, points.shape[1], floor)
                found.append(Clustering(k, seed, labels, inertia, score))
    return found


def _kmeans() -> Any:
    """scikit-learn's KMeans, imported when it is needed: that takes most of a second, which every command would pay."""
    before = set(os.environ)
    from sklearn.cluster import KMeans

    # It leaves settings for OpenMP in our environment, which is that of the next program that is built from here.
    for name in set(os.environ) - before:
        del os.environ[name]
    return KMeans


def bic_choice(clusterings: Sequence[Clustering], threshold: float) -> tuple[Clustering, list[Clustering]]:
    """SimPoint's rule: the smallest k whose score reaches min + threshold (max - min), over each k's best.

    Returns that clustering and all that reach the bar, whatever their k and seed.
    """
    best: dict[int, Clustering] = {}
    for one in clusterings:
        if one.k not in best or one.bic > best[one.k].bic:
            best[one.k] = one
    scores = [one.bic for one in best.values()]
    # The bar itself may round to just above the best score when threshold is 1.
    bar = min(min(scores) + threshold * (max(scores) - min(scores)), max(scores))
    chosen = min((one for one in best.values() if one.bic >= bar), key=lambda one: one.k)
    return chosen, [one for one in clusterings if one.bic >= bar]
