# SPDX-License-Identifier: Apache-2.0
"""Commands around predictions: each module holds one topic, and imports what it needs when it is called."""

from probe.commands.completion import completion
from probe.commands.explain import explain
from probe.commands.export import export
from probe.commands.net import net
from probe.commands.rank import rank
from probe.commands.report import report
from probe.commands.slurm import slurm
from probe.commands.store import compare, history, store

COMMANDS = (explain, report, store, history, compare, rank, net, export, slurm, completion)
