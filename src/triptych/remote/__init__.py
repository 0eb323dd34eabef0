"""Telling a remote centre that the vehicle is in a minimal risk manoeuvre: message, queue, retry, delivery. No ROS.

Data flows one way: :class:`Reporter` decides what is worth a message, :class:`Outbox` keeps it on disk until the far
end has it, :class:`Courier` carries it there with a :class:`Notifier`.
"""

from triptych.remote.courier import Courier, DeliveryError, Notifier, Refused
from triptych.remote.message import Notification, Position, json_schema
from triptych.remote.outbox import Outbox
from triptych.remote.queue import Backoff, Letter, Queue
from triptych.remote.reporter import Event, Reporter
from triptych.remote.target import Settings, notifier

__all__ = [
    "Backoff",
    "Courier",
    "DeliveryError",
    "Event",
    "Letter",
    "Notification",
    "Notifier",
    "Outbox",
    "Position",
    "Queue",
    "Refused",
    "Reporter",
    "Settings",
    "json_schema",
    "notifier",
]
