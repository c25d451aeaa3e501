"""Networks: plain torch modules whose parts have names. They know neither peers nor data."""
