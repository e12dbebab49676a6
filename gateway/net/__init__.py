"""The one guarded door out: which hosts and addresses may be reached, and within which limits.

`Policy` says where; `door.Door` sends requests, `download.download` fills a file, and
`transport.GuardedTransport` stands under an HTTP client of someone else. Those three modules load
the HTTP client, which takes a tenth of a second: import them where they are used.
"""

from gateway.net.limits import Limits
from gateway.net.policy import Policy

__all__ = ["Limits", "Policy"]
