"""The lane of patch() for any decoder: layers and head run by the model's own code, in chunks of rows, proved first (lane.py)."""
