"""One module per subcommand of `python -m looplit laws`: its options, the call of the library, and its figure."""
