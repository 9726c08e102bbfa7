"""Command-line entry points: one module per sub-command, with `build_parser()` (its parser) and `main()` (exit status).

Promise: results go to standard output, errors and warnings to standard error as `pointsman COMMAND: ...`. Exit status 0 is
yes, 1 is no (different, down, not found), 2 means that the command could not do its work. `-o json` prints the types of
`explain` and `report` as they are; `-n` is a namespace, `--color` and `NO_COLOR` work everywhere.

A module imports at its top only what a question to the running proxy needs; a test measures it. A new command needs a
row in `SUBCOMMANDS` (`cli/main.py`); completions and man pages follow from its parser.
"""
