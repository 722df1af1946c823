# SPDX-License-Identifier: Apache-2.0
"""Facts read from a program file alone: no process is needed, none is touched."""
