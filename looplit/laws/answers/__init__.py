"""Whole answers from finished runs, one module per question: the numbers, their JSON form and their table."""
