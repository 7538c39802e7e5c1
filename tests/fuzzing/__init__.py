"""A fuzzer of all that reads hostile input: files of every format, the store, the cache, the dashboard, commands.

`make fuzz` runs it for hours, `make test` a fixed list of inputs. docs/trust.md has the rules and the results.
"""
