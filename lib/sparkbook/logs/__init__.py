"""The log doctor: reads what a start printed and says what went wrong, what to do, what is noise,
or that all is well.

>>> from sparkbook import logs
>>> logs.diagnose("OSError: [Errno 98] Address already in use").primary.kind
'port-in-use'
"""

from sparkbook.logs.doctor import Diagnosis, Doctor, diagnose
from sparkbook.logs.facts import Facts, parse_facts
from sparkbook.logs.follow import Follower
from sparkbook.logs.reader import Event, Reader, events
from sparkbook.logs.signatures import Signature, Signatures, signatures
from sparkbook.logs.story import Phase, Story

__all__ = [
    "Diagnosis",
    "Doctor",
    "Event",
    "Facts",
    "Follower",
    "Phase",
    "Reader",
    "Signature",
    "Signatures",
    "Story",
    "diagnose",
    "events",
    "parse_facts",
    "signatures",
]
