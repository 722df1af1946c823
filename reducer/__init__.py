"""From raw checkpoints to one small file: page store and probe archive."""
