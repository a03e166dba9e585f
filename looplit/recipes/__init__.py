"""The studies' recipes: families, hyperparameters and the runs they prescribe; no torch.

`study` is what a study is; `growth_study` and `truncation_study` are LoopLit's two; `lookup` leads from names and
module classes to them, and from a run back to its module's arguments. Of the growth study: `families` and `variants`
(which models), `hyperparameters` and `tuning` (how they train), `length` and `budgets` (how long, how deep),
`relations` (its fits between passes, tokens and growth). Of the truncation study: `hyperp`. `run` is one run in
numbers, `training` what optimizer and schedule read of it.
"""
