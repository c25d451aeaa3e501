"""Bounds of event-triggered averaging that are needed without torch and scipy, unlike `event_trigger.py`."""

#: Exchanges that it takes until a peer activated by a share has given weight back to the sender.
EXCHANGES_MIN = 2
