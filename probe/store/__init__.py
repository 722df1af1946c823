# SPDX-License-Identifier: Apache-2.0
"""The store: every probe, node, prediction and observed run time, in SQLite or a site's database (docs/store.md).

with open_store("sqlite:////shared/probe/store.db") as store:
    import_results(store, [json.load(file)], made_at=time.time())
    candidates(store, find_probe(store, "solver"))
"""

from probe.store.importing import import_results
from probe.store.observing import calibration, observe
from probe.store.opening import Store, open_store
from probe.store.reading import candidates, compare, find_node, find_probe, history

__all__ = [
    "Store",
    "calibration",
    "candidates",
    "compare",
    "find_node",
    "find_probe",
    "history",
    "import_results",
    "observe",
    "open_store",
]
