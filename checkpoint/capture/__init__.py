# SPDX-License-Identifier: Apache-2.0
"""Direct capture: the state and the memory of a process that is traced by an ordinary user, without CRIU."""
