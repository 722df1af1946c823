# SPDX-License-Identifier: Apache-2.0
"""A probe and what came of it on other nodes as one page to read, and its figures (docs/report.md).

`probe.report.writing.write_report` is the way in. Only this package needs matplotlib and Jinja.
"""
