"""The lane of patch() for families that the engine knows: layers and head as nodes of torch's autograd that the engine computes (lane.py)."""
