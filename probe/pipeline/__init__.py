# SPDX-License-Identifier: Apache-2.0
"""Build a probe: a stage a module, named as the terminal shows it; build.py is their list."""
