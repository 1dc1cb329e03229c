"""The family of the rules of several Sparks, and the sources that several of them have."""

from __future__ import annotations

from sparkbook.cluster.sighting import described
from sparkbook.rules import Family

FAB = Family(
    "FAB",
    "Several Sparks",
    intro=(
        "What `sparkbook check --cluster` and `sparkbook serve --cluster` say of the nodes, of the"
        " network between them, and of a server that runs over them. The examples are two Sparks"
        " put together from public reports, with what is changed about the second."
    ),
    describe=described,
)
GUIDE = "https://github.com/mark-ramsey-ri/vllm-dgx-spark"
IFNAMES = "https://github.com/vllm-project/vllm/pull/40991"
DEGRADED = "https://github.com/NVIDIA/dgx-spark-playbooks/pull/108"
SLOW = "https://huggingface.co/LibertAIDAI/GLM-5.3-Flash-NVFP4/discussions/5"
RAMSEY = "https://github.com/mark-ramsey-ri/vllm-dgx-spark/blob/main/improvements.md"
