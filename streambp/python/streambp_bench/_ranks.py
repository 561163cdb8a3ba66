"""backward() over several processes: the ranks of torch.distributed's process groups, as the engine knows them by name."""

from contextlib import contextmanager

import torch

from ._library import InputError, checked, library


def group_name(process_group):
    """The name under which torch knows the group, "" for None. Raises InputError for what is no group of this process."""
    if process_group is None:
        return ""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        raise InputError("process_group: torch.distributed is not initialized; call init_process_group() first")
    if not isinstance(process_group, distributed.ProcessGroup) or distributed.get_rank(process_group) < 0:
        raise InputError(f"process_group: {type(process_group).__name__}, expected a group that this process belongs to, such as "
                         "torch.distributed.group.WORLD")
    return process_group.group_name


@contextmanager
def refused_together(name, first=None):
    """Every rank of the group `name` that is about to begin a pass raises an InputError inside, with the rank's number; "": this one alone.

    first: what the other ranks wait for before they begin the pass.
    """
    try:
        yield
    except InputError as error:
        if name:
            if first is not None:
                first()
            library()
            checked(torch.ops.streambp.refuse_on_ranks, name, str(error))
        raise
