"""The page of `fedpeer demo associative --web`: give trained peers part of a pattern and see how they complete it."""
