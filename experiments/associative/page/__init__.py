"""The page of `fedpeer demo associative --web`: give trained peers a part of a pattern, see how they complete it."""
