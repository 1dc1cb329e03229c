"""The steps of a start, and what a line says when one of them begins."""

BEGINS = (
    (r"world_size=(?!1 )\d+ .*distributed_init_method=", "ranks meet"),
    (r"rank \d+ in world size (?!1 )", "ranks met"),
    (r"starting to load (?:draft|model)", "load begins"),
    (r"loading (?:the )?draft", "draft begins"),
    (r"dynamo bytecode transform|cache directory: .*torch\.compile", "compile begins"),
    (r"autotuning process starts", "autotune begins"),
    (r"warming up model", "warm-up begins"),
    (r"capturing cuda graphs", "capture begins"),
)
"""What a line says when a step begins, and the step's name."""

WORDS = frozenset(
    b"world_size world starting loading torch dynamo autotuning warming capturing".split()
)
"""Words that each of these lines has one of."""
