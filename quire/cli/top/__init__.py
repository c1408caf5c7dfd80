"""``quire top``: a running server's figures, alarms and models, live in the terminal."""
