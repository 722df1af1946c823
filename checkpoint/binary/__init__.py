# SPDX-License-Identifier: Apache-2.0
"""What a program file says by itself: no process is needed, none is touched."""
