# SPDX-License-Identifier: Apache-2.0
"""Uses a store that was copied into the folder given, and a new one; prints how SQLite kept its journal."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from results import result

from probe.store.importing import import_results
from probe.store.opening import may_keep_log, open_store
from probe.store.reading import history


def use(path: Path) -> list[object]:
    with open_store(path) as store:
        import_results(store, [result(2.0)])
        with store.reading() as connection:
            mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar()
        return [mode, len(history(store))]


folder = Path(sys.argv[1])
print(json.dumps({"local": may_keep_log(folder), "copied": use(folder / "store.db"), "new": use(folder / "new.db")}))
