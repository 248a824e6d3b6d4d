"""The command line: one function per command, no logic, no slow imports before one runs."""
