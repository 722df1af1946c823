# SPDX-License-Identifier: Apache-2.0
"""Tables of the store. Times of day are seconds since 1970 in UTC, durations seconds, throughputs bytes per second."""

from __future__ import annotations

import sqlalchemy as sa

SCHEMA_VERSION = 3
"""Raised with every change of a table; a store of another version is refused, never guessed at."""

UPGRADED_FROM = ("1", "2")
"""The versions that `probe store upgrade` turns into this one: they lack tables of ADDED."""

VERSION_KEY = "schema_version"

FEW = 500
"""Values in one IN (...): SQLite's oldest limit is 999."""

PHASE_KEYS = ("id", "weight", "time_share", "t_ref", "t_cand", "status", "failure", "restorer")
"""What is kept of each phase, in this order; the repeats are not."""

METADATA = sa.MetaData()

_KEY = sa.String(32)
_NAME = sa.String(255)

info = sa.Table(
    "probe_store_info",
    METADATA,
    sa.Column("key", _NAME, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
"""Its row VERSION_KEY is also what writers of a database server lock, so that there is one at a time."""

probes = sa.Table(
    "probes",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    # Of the program, its arguments and its input: a probe that is built again stays the same entry.
    sa.Column("key", _KEY, nullable=False, unique=True),
    sa.Column("name", _NAME, nullable=False, index=True),
    sa.Column("program", sa.JSON, nullable=False),
    sa.Column("inputs", sa.String(64), nullable=False),
    sa.Column("tags", sa.JSON, nullable=False),
)

clusters = sa.Table(
    "clusters",
    METADATA,
    sa.Column("name", _NAME, primary_key=True),
    sa.Column("home", sa.Boolean, nullable=False),
    sa.Column("local_network", sa.Float),
    sa.Column("inbound", sa.Float),
    sa.Column("outbound", sa.Float),
    sa.Column("latency", sa.Float, nullable=False),
)

nodes = sa.Table(
    "nodes",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("name", _NAME, nullable=False, unique=True),
    sa.Column("cluster", _NAME, nullable=False),
    sa.Column("cpu", sa.Text, nullable=False),
    sa.Column("cores", sa.Integer, nullable=False),
    sa.Column("memory", sa.BigInteger),
    sa.Column("kernel", sa.Text, nullable=False),
    sa.Column("features", sa.JSON, nullable=False),
    sa.Column("workers", sa.Integer, nullable=False),
    sa.Column("last_seen", sa.Float, nullable=False),
    sa.Column("state", _KEY, nullable=False),
)
"""`state` is a checksum of what predictions depend on (`node_state`): where it differs, a prediction is stale."""

predictions = sa.Table(
    "predictions",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    # Of the whole result: the same result is never stored twice, however often it is imported.
    sa.Column("digest", _KEY, nullable=False, unique=True),
    sa.Column("probe", sa.ForeignKey("probes.id"), nullable=False),
    sa.Column("node", sa.ForeignKey("nodes.id"), nullable=False),
    sa.Column("made_at", sa.Float, nullable=False),
    sa.Column("seconds", sa.Float, nullable=False),
    sa.Column("low", sa.Float, nullable=False),
    sa.Column("high", sa.Float, nullable=False),
    sa.Column("coverage", sa.Float, nullable=False),
    sa.Column("clock", sa.String(8), nullable=False),
    sa.Column("file", sa.Text, nullable=False),
    sa.Column("cpu", sa.Text, nullable=False),
    sa.Column("kernel", sa.Text, nullable=False),
    sa.Column("load", sa.Float, nullable=False),
    sa.Column("state", _KEY, nullable=False),
    sa.Column("estimators", sa.JSON, nullable=False),
    # JSON: for each phase the values of PHASE_KEYS. Encoded once for the digest and for here, and without the keys.
    sa.Column("phases", sa.Text, nullable=False),
    sa.Column("warnings", sa.JSON, nullable=False),
    sa.Index("predictions_by_probe_node", "probe", "node", "made_at"),
)

newest = sa.Table(
    "newest_predictions",
    METADATA,
    sa.Column("probe", sa.ForeignKey("probes.id"), primary_key=True, autoincrement=False),
    sa.Column("node", sa.ForeignKey("nodes.id"), primary_key=True, autoincrement=False),
    sa.Column("prediction", sa.ForeignKey("predictions.id"), nullable=False),
    sa.Column("made_at", sa.Float, nullable=False),
    sa.Column("seconds", sa.Float, nullable=False),
    sa.Column("low", sa.Float, nullable=False),
    sa.Column("high", sa.Float, nullable=False),
    sa.Column("state", _KEY, nullable=False),
    # All nodes of a probe lie together in the file: one read for a rank, one place to write for an import.
    sqlite_with_rowid=False,
)
"""One row per probe and node, kept by every import: ranking must not read all that was ever predicted."""

observations = sa.Table(
    "observations",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    # Names where it comes from, such as slurm:CLUSTER:JOB: what is read twice is stored once.
    sa.Column("source", _NAME, nullable=False, unique=True),
    sa.Column("probe", sa.ForeignKey("probes.id"), nullable=False),
    sa.Column("node", sa.ForeignKey("nodes.id"), nullable=False),
    sa.Column("observed_at", sa.Float, nullable=False),
    sa.Column("seconds", sa.Float, nullable=False),
    sa.Column("prediction", sa.ForeignKey("predictions.id")),
    sa.Index("observations_by_probe_node", "probe", "node"),
)
"""`prediction` is the newest one for this probe and node that was made before the run ended; null without any."""

runs = sa.Table(
    "runs",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    # Names where it comes from: what is read twice is stored once.
    sa.Column("source", _NAME, nullable=False, unique=True),
    sa.Column("app", sa.String(64), nullable=False),
    sa.Column("kernel", sa.String(64), nullable=False),
    sa.Column("config", sa.String(64), nullable=False),
    sa.Column("parameters", sa.JSON, nullable=False),
    sa.Column("work", sa.Float, nullable=False),
    sa.Column("node_type", _NAME, nullable=False),
    sa.Column("nodes", sa.Integer, nullable=False),
    sa.Column("cores", sa.Integer, nullable=False),
    sa.Column("ranks", sa.Integer, nullable=False),
    sa.Column("threads", sa.Integer, nullable=False),
    sa.Column("shared", sa.Boolean, nullable=False),
    sa.Column("ended_at", sa.Float, nullable=False),
    sa.Column("runtime", sa.Float, nullable=False),
    sa.Column("mpi", sa.Float),
    sa.Column("io", sa.Float),
    sa.Column("coupling", sa.Float),
    sa.Column("wait", sa.Float),
    sa.Column("energy", sa.Float),
    sa.Column("energy_source", sa.String(16), nullable=False),
    sa.Column("benchmark", sa.Boolean, nullable=False),
    sa.Column("notes", sa.JSON, nullable=False),
    sa.Index("runs_by_kernel", "app", "kernel", "node_type"),
)
"""One row per run of a kernel (`ParallelRun`). A configuration is the SHA-256 of its input files."""

power = sa.Table(
    "node_power",
    METADATA,
    sa.Column("node_type", _NAME, primary_key=True),
    sa.Column("source", sa.String(16), primary_key=True),
    sa.Column("cores", sa.Integer, nullable=False),
    # Pairs of busy share and watts.
    sa.Column("points", sa.JSON, nullable=False),
    sa.Column("set_at", sa.Float, nullable=False),
)

usages = sa.Table(
    "usages",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    # Of the whole profile: the same profile is never stored twice.
    sa.Column("digest", _KEY, nullable=False, unique=True),
    sa.Column("key", _KEY, nullable=False, index=True),
    sa.Column("program", sa.JSON, nullable=False),
    sa.Column("tags", sa.JSON, nullable=False),
    sa.Column("node", _NAME, nullable=False),
    sa.Column("started", sa.Float, nullable=False),
    # JSON: for each figure its unit and its total.
    sa.Column("totals", sa.Text, nullable=False),
)
"""One row per resource profile: totals, not what happened over time."""

emulations = sa.Table(
    "emulations",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("digest", _KEY, nullable=False, unique=True),
    # Of the command's words: profiles, emulations and probes of one command have the same.
    sa.Column("key", _KEY, nullable=False, index=True),
    sa.Column("name", _NAME, nullable=False, index=True),
    sa.Column("program", sa.JSON, nullable=False),
    sa.Column("tags", sa.JSON, nullable=False),
    sa.Column("node", sa.ForeignKey("nodes.id"), nullable=False),
    sa.Column("made_at", sa.Float, nullable=False),
    sa.Column("seconds", sa.Float, nullable=False),
    sa.Column("kernel", sa.Text, nullable=False),
    sa.Column("equal", sa.String(16), nullable=False),
    sa.Column("threads", sa.Integer, nullable=False),
    sa.Column("state", _KEY, nullable=False),
    sa.Column("warnings", sa.JSON, nullable=False),
)
"""One row per emulation. It is no prediction: there is no interval, and it never replaces one."""

ADDED = (runs, power, usages, emulations)
"""Tables that this version has more than version 1; the last two, more than version 2."""
