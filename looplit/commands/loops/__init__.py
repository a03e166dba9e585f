"""One module per subcommand of `python -m looplit loops`: its options, the call of the library, and its figure."""
