"""Checkpoints as files: read as data alone, written whole or not at all."""
