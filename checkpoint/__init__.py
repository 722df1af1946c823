"""Launching, counting stubs, checkpoints: everything that touches a running process."""
