"""The studies' kinds of figures from anyone's data. matplotlib is imported only here.

Every function takes what `looplit.laws` returns and gives a `matplotlib.figure.Figure`; `style.save` writes it.
"""
