"""The two studies' recipes: families, hyperparameters and the runs they prescribe; no torch."""
