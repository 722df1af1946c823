# SPDX-License-Identifier: Apache-2.0
"""Code put into a live process: counters at its blocks, markers that stamp and stop it."""
