# SPDX-License-Identifier: Apache-2.0
"""Reports on simulated MPI programs: who waits for whom, the critical path, what other networks and cores would buy."""
