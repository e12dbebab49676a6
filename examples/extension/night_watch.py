"""A custom extension that refuses every write at night."""

from datetime import datetime

from gateway.calls import Call
from gateway.errors import Forbidden
from gateway.extensions import Extension
from gateway.tools import Permission


class NightWatch(Extension):
    """`opens` and `closes` are hours of the day; they come from the options in `toolgate.yaml`."""

    def __init__(self, opens: int = 7, closes: int = 22) -> None:
        self._hours = range(opens, closes)

    async def before_execute(self, call: Call) -> None:
        if call.target.permission is not Permission.READ_ONLY and datetime.now().hour not in self._hours:
            raise Forbidden(f"{call.name} is closed until {self._hours.start}:00", code="NIGHT")
