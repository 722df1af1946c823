# SPDX-License-Identifier: Apache-2.0
"""Choose nodes and clusters for many tasks, from predicted times and measured networks (docs/ranking.md)."""

from probe.ranking.decision import ClusterDecision, Decision, NodeDecision, decide
from probe.ranking.pool import Cluster, Node, Pool, Workload

__all__ = ["Cluster", "ClusterDecision", "Decision", "Node", "NodeDecision", "Pool", "Workload", "decide"]
