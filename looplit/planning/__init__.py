"""What a run will do and need, and the configuration files that say so; nothing is built."""
