# SPDX-License-Identifier: Apache-2.0
"""Kept probes against full runs, on whatever processor the project is worked on. See docs/hosts.md."""
