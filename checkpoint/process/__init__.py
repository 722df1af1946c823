# SPDX-License-Identifier: Apache-2.0
"""One live process: started, traced, looked at, ended."""
