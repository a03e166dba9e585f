"""Evaluation: token losses, logit lens, CORE."""
