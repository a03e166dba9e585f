"""The studies' kinds of figures from anyone's data. matplotlib is imported only here.

Every function takes what `looplit.scaling.laws` returns and gives a `matplotlib.figure.Figure`; `style.save` writes it.
"""
