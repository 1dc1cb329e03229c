"""How long a plan takes: every recipe of the catalogue once, in this process.

.venv/bin/python tools/bench_plan.py
"""

import time

from sparkbook import plan, recipes


def main() -> None:
    names = recipes.ids()
    begin = time.perf_counter()
    for name in names:
        plan.of(name).to_dict()
    print(f"{len(names)} recipes planned in {time.perf_counter() - begin:.2f} s, imports included")


if __name__ == "__main__":
    main()
