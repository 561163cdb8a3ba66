"""Parameters that FSDP2 has divided among ranks, around calls that no step of training is made of."""

import contextlib


@contextlib.contextmanager
def as_sharded(base):
    """What was divided at the beginning is divided at the end. FSDP2 keeps what a forward pass has gathered of the root for the backward pass that follows; where
    none does, the next steps would compute with those copies, whatever the optimizer does to the divided weights."""
    divided = [module for module in base.modules() if hasattr(module, "reshard") and _is_divided(module)]
    try:
        yield
    finally:
        for module in divided:
            module.reshard()


def _is_divided(module):
    inner = {id(each) for child in module.modules() if child is not module and hasattr(child, "reshard") for each in child.parameters()}
    return any(type(each.data).__name__ == "DTensor" for each in module.parameters() if id(each) not in inner)
