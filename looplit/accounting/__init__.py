"""Parameters and FLOPs of a backbone, and the passes of a run, counted exactly; plain integers, no torch."""
