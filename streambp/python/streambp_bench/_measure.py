"""Memory of any torch code, counted where tensors are allocated: peak and live bytes, and by scope what the peak was made of."""

import contextlib
import gc
import json
import threading

import torch

from ._library import InputError, checked, library

_lock = threading.RLock()
_active = {}  # device -> the measurements that are running on it, the outermost first


def measure(device="cpu"):
    """A context manager that measures the memory of tensors on `device`, by all threads, while it is open:

        with streambp_bench.measure() as m:
            with streambp_bench.scope("forward"):
                loss = model(**batch).loss
            loss.backward()
        print(m, m.peak_bytes, m.beyond_start, m.at_peak)

    On the CPU the library's own allocator counts, to the byte, from the moment when the library was loaded (`import streambp_bench as sb` and the first
    call; streambp_bench.load() does it early). A tensor that was allocated before, or that lies in a mapped file (safetensors), is not in
    start_bytes and peak_bytes; m.uncounted_bytes says how much that is, and m.beyond_start is right all the same. Scratch space inside BLAS
    libraries and memory outside of torch are not counted. On CUDA the caching allocator's own numbers are read, which see everything and
    know no scopes. Measurements may be nested.

    Returns a Measurement. Raises InputError for another device, and on the CPU where STREAMBP_METER=off has left torch's allocator in place.
    """
    return Measurement(device)


def load():
    """Loads the engine's library and puts its allocator in place, before any model is made: what comes later is counted."""
    library()


class Measurement:
    """What measure() has measured so far; after its end, for good.

    start_bytes: alive at the start; live_bytes: alive at the end, or now; peak_bytes: the most that was alive at once; at_peak: {scope:
    bytes}, which sum to peak_bytes; host_peak_bytes: the most that the engine kept in host memory on purpose (offload); uncounted_bytes: of
    CPU tensors that Python knew of at the start and the meter does not count.
    """

    def __init__(self, device="cpu"):
        self.device = _device_of(device)
        self._reader = _CudaReader(self.device) if self.device.type == "cuda" else _CpuReader()
        self.start_bytes = self._peak = self._live = self._host_peak = 0
        self._at_peak = {}
        self.uncounted_bytes = 0

    def __enter__(self):
        with _lock:
            running = _active.setdefault(self.device, [])
            if self in running:
                raise InputError("measure: this measurement is running already; make another one for what is inside")
            self.uncounted_bytes = self._reader.uncounted_bytes()
            _fold(self._reader, running)
            self._reader.reset()
            self._peak = -1
            running.append(self)
            _fold(self._reader, running)
            self.start_bytes = self._live
        return self

    def __exit__(self, *exception):
        with _lock:
            self._refresh()
            _active[self.device].remove(self)
        return False

    def _refresh(self):
        """The numbers as they are now, where the measurement is running."""
        with _lock:
            running = _active.get(self.device, [])
            if self in running:
                _fold(self._reader, running)

    @property
    def peak_bytes(self):
        self._refresh()
        return self._peak

    @property
    def live_bytes(self):
        self._refresh()
        return self._live

    @property
    def at_peak(self):
        self._refresh()
        return dict(self._at_peak)

    @property
    def host_peak_bytes(self):
        self._refresh()
        return self._host_peak

    @property
    def beyond_start(self):
        """The peak, beyond what was alive at the start."""
        return self.peak_bytes - self.start_bytes

    def __str__(self):
        parts = sorted(self.at_peak.items(), key=lambda part: -part[1])
        text = f"peak {format_bytes(self.peak_bytes)}, {format_bytes(self.beyond_start)} beyond the start: "
        text += ", ".join(f"{scope} {format_bytes(size)}" for scope, size in parts)
        if self.uncounted_bytes:
            text += f" (and {format_bytes(self.uncounted_bytes)} that were there before the meter, or lie in files, and are not counted)"
        return text

    def __repr__(self):
        return f"<Measurement on {self.device}: {self}>"


@contextlib.contextmanager
def scope(name):
    """Names what this thread allocates on the CPU while it is open, in Measurement.at_peak; the innermost scope counts.

    A process may use about 50 names; allocations under further ones are called "other", as those under none are. The engine's own scopes
    ("layer inputs", "chunk", "logits", ...) go before.
    """
    if not isinstance(name, str) or not name:
        raise InputError(f"scope: {name!r}, expected a name")
    library()
    torch.ops.streambp.scope_push(name)
    try:
        yield
    finally:
        torch.ops.streambp.scope_pop()


def format_bytes(size):
    """1234567890 as "1.23 GB"."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(size) >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size} B"


def _device_of(device):
    device = torch.device(device)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise InputError("measure: no CUDA device here; expected device=\"cpu\"")
        return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    if device.type != "cpu":
        raise InputError(f"measure: device '{device}', expected cpu or cuda")
    return torch.device("cpu")


def _fold(reader, running):
    """Takes what the meter has seen since its last reset into every measurement that is running."""
    if not running:
        return
    reading = reader.read()
    for measurement in running:
        measurement._live = reading["live_bytes"]
        measurement._host_peak = max(measurement._host_peak, reading["host_peak_bytes"])
        if reading["peak_bytes"] > measurement._peak:
            measurement._peak, measurement._at_peak = reading["peak_bytes"], reading["at_peak"]


class _CpuReader:
    def __init__(self):
        library()
        if not torch.ops.streambp.meter_counts(torch.empty(1)):
            raise InputError("measure: the CPU's meter is not in place (STREAMBP_METER=off); start the program without it")

    def read(self):
        return json.loads(checked(torch.ops.streambp.meter_read, "cpu"))

    def reset(self):
        checked(torch.ops.streambp.meter_reset, "cpu")

    def uncounted_bytes(self):
        """Of the storages of all tensors that Python knows."""
        sizes = {}
        for thing in gc.get_objects():
            # Not isinstance(): proxies answer that with whatever they stand for.
            if issubclass(type(thing), torch.Tensor) and type(thing) in (torch.Tensor, torch.nn.Parameter):
                if thing.device.type == "cpu" and thing.layout == torch.strided and not torch.ops.streambp.meter_counts(thing.detach()):
                    storage = thing.untyped_storage()
                    sizes[storage.data_ptr()] = storage.nbytes()
        return sum(sizes.values())


class _CudaReader:
    def __init__(self, device):
        self.device = device

    def read(self):
        peak = torch.cuda.max_memory_allocated(self.device)
        return {"live_bytes": torch.cuda.memory_allocated(self.device), "peak_bytes": peak, "at_peak": {"other": peak}, "host_peak_bytes": 0}

    def reset(self):
        torch.cuda.reset_peak_memory_stats(self.device)

    def uncounted_bytes(self):
        return 0
