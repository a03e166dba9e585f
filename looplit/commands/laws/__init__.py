"""One module per subcommand of `python -m looplit laws`: its arguments, its analysis, its table and its figure."""
