"""How fast a model runs here, measured so that it can be believed: `runner bench`, and the TUI's bench mode.

run.py measures: `run_bench(BenchRequest, Paths, CancelToken)` yields events, the run last. record.py has its values.
"""
