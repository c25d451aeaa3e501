"""What averages where something has moved ask of an averaging. No torch or scipy, unlike `event_trigger.py`."""

#: Exchanges in which a peer that was woken gives weight back to the one that woke it.
EXCHANGES_MIN = 2
