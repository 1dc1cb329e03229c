"""Record the minute that chapter 10 shows: the embedded engine, drafting, under a load that comes
and goes.

PYTHONPATH=lib .venv/bin/python tools/record_minute.py
"""

import datetime
import threading
import time

from sparkbook import dashboard
from sparkbook.bench import load, prompts
from sparkbook.serve import embedded

SECONDS = 60
LOADS = ((6, 1, 10), (22, 4, 14), (42, 8, 10))
"""From which second, how many at a time, for how many seconds."""


def main() -> None:
    """Start, load, look, write."""
    with embedded.start("embedded/tiny-mtp-k3") as engine:
        begin = time.monotonic()

        def work() -> None:
            with load.Worker() as worker:
                for at, slots, seconds in LOADS:
                    time.sleep(max(0.0, begin + at - time.monotonic()))
                    plan = load.BenchPlan(
                        classes=("chat",),
                        texts=prompts.familiar(),
                        concurrency=(slots,),
                        max_tokens=96,
                    )
                    bench = load.Bench(engine.endpoint, plan, worker, None, None)
                    texts = [prompt.text for prompt in plan.prompts("chat", 600, salt=None)]
                    bench.send(
                        [bench.body(text, 96) for text in texts], slots, seconds=float(seconds)
                    )

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        stop, looks = threading.Event(), []
        for one in dashboard.watch(engine.endpoint, 1.0, stop=stop):
            looks.append(one)
            if one.t_s >= SECONDS:
                break
        date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        dashboard.write(
            looks,
            dashboard.RECORDED,
            engine="vLLM " + engine.endpoint.get("/version").json()["version"],
            model=engine.endpoint.model,
            machine="this project's CPU engine, 2 cores",
            date=date,
        )
        thread.join(timeout=30)


if __name__ == "__main__":
    main()
