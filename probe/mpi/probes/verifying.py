# SPDX-License-Identifier: Apache-2.0
"""Verify a cluster of ranks: the member least like its representative runs alone, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from probe.mpi.probes.clusters import Cluster, Summary
from probe.mpi.recording import Recording
from probe.mpi.replay import replay


def verified(recording: Recording, cluster: Cluster, ranks: Sequence[Summary], makes: Sequence[str] = ()) -> Cluster:
    """The cluster with its representative replayed, and a member verified, where it has another whose answers are kept.

    makes: files that no rank alone is to find in its folder. The member's CPU time alone is predicted by the
    representative's, by the ratio of their recorded computing. Raises what `replay` raises, of either rank.
    """
    done = replay(recording, cluster.representative, quiet=True, makes=makes)
    cluster, own = replace(cluster, differing=done.differing), done.cpu
    others = [rank for rank in cluster.ranks if rank != cluster.representative and recording.ranks[rank].kept]
    if not others or own <= 0 or cluster.computing <= 0:
        return cluster
    member = max(others, key=lambda rank: abs(ranks[rank].computing - cluster.computing))
    alone = replay(recording, member, quiet=True, makes=makes).cpu
    predicted = own * ranks[member].computing / cluster.computing
    return replace(cluster, verified=member, error=predicted / alone - 1 if alone > 0 else 0.0)
