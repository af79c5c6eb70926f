"""`runner ps`: the models that this user's runner processes have loaded now.

Each engine process announces itself in a file (running.py); this file only shows them.
"""

from __future__ import annotations

import time

from runner.cli import options, render


def ps(as_json: options.Json = False) -> None:
    """List the models that are loaded now by your runner processes. MEMORY is what loading took."""
    from runner.paths import user_paths
    from runner.running import running
    from runner.wire import to_plain

    engines = list(running(user_paths().engines))
    if as_json:
        render.emit_json("runner.ps/1", {"engines": to_plain(engines)})
        return
    if not engines:
        render.narrate("No model is loaded.")
        return
    headers = ("PID", "MODEL", "QUANT", "BACKEND", "DEVICE", "CONTEXT", "MEMORY", "SINCE")
    now = time.time()
    rows = [
        (
            str(engine.pid),
            engine.model,
            engine.quantization,
            engine.backend,
            engine.device,
            str(engine.n_ctx),
            render.binary_size(engine.memory_bytes),
            render.duration(max(0.0, now - engine.started_at)),
        )
        for engine in engines
    ]
    render.table(headers, rows, right=(0, 5, 6))
