"""The tables that check_house.py holds the project to."""

# Of each room, those whose headers its files may include, in addition to its own; "*" is everything. A room is a folder
# with all below it, or a file; the longest entry that fits a path is its room.
_BASE = ["streambp/error.h", "streambp/near_names.h", "streambp/printable.h", "streambp/torch_headers.h"]
_LOW = [*_BASE, "streambp/memory", "streambp/runtime"]
_OPS = [*_LOW, "streambp/ops"]  # with its rooms cpu and cuda
_MODEL = [*_OPS, "streambp/model"]
_OBJECTIVE = [*_MODEL, "streambp/objective"]
_BACKPROP = [*_OBJECTIVE, "streambp/optimizer", "streambp/backprop"]
_LIBRARY = [*_BACKPROP, "streambp/data", "streambp/plan"]

ROOMS = {
    "streambp/error.h": [],
    "streambp/error.cc": ["streambp/error.h", "streambp/printable.h"],
    "streambp/near_names.h": [],
    "streambp/near_names.cc": ["streambp/near_names.h"],
    "streambp/printable.h": [],
    "streambp/printable.cc": ["streambp/printable.h"],
    "streambp/torch_headers.h": [],
    "streambp/fmt.cc": [],
    "streambp/memory": [*_BASE, "streambp/runtime/processor.h", "streambp/runtime/torch_private.h"],
    "streambp/runtime": _BASE,
    "streambp/runtime/device.cc": [*_LOW, "streambp/ops"],  # opening a GPU loads our kernels for it
    "streambp/ops": _OPS,
    "streambp/ops/cpu": ["streambp/error.h", "streambp/ops/mlp/activation.h", "streambp/ops/attention/attention_blocks.h"],
    "streambp/ops/cuda": [*_LOW, "streambp/ops/cpu/elementwise.h"],  # formulas that both have
    "streambp/model": _OPS,
    "streambp/objective": _MODEL,
    "streambp/backprop": _BACKPROP,
    "streambp/optimizer": _MODEL,
    "streambp/data": _OBJECTIVE,
    "streambp/plan": _LIBRARY,
    "streambp/distributed": [*_BACKPROP, "streambp/distributed"],
    "streambp/interop": _LOW,
    "streambp/examples": _LIBRARY,
    "streambp/python": [*_LIBRARY, "streambp/distributed"],  # the shared library for Python
    "reference": [],
    "scripts/compare": ["streambp/runtime/torch_private.h"],  # the meter, on another torch
    "bench": [*_LIBRARY, "bench/baseline", "bench/cli", "streambp/distributed"],
    "bench/baseline": _LIBRARY,
    "bench/cli": _LIBRARY,
    "verify": [*_LIBRARY, "bench/baseline", "bench/cli", "reference"],
    "verify/tests": ["*"],
}

# Of each library the pattern of its headers, and the patterns of the files that may include them.
LIBRARIES = {
    "CLI11": (r"CLI/", [r"bench/", r"verify/"]),
    "nlohmann/json": (
        r"nlohmann/",
        [r"bench/", r"verify/", r"streambp/.*\.cc$", r"streambp/model/(config/read/config_reader|files/strict_json)\.h$"],
    ),
    "Google Benchmark": (r"benchmark/", [r"bench/micro/"]),
    "GoogleTest": (r"g(test|mock)/", [r"verify/tests/"]),
    "Eigen": (r"Eigen/", [r"reference/", r"verify/"]),
    "torch": (r"(ATen|c10|torch)/", [r"bench/", r"verify/", r"streambp/(?!ops/cpu/|fmt\.cc)", r"scripts/compare/"]),
}

# What torch may change from version to version without a word: names, and the patterns of the files that may write them. Tests may,
# of the kernels and allocators that they stand in for.
TORCH_PRIVATE = [
    (
        r"\bat::(native|impl)::|\bat::_(flash|scaled_dot|efficient|cudnn)\w*|\bc10::impl::|\bautograd::(impl|Node|set_history|collect_next_edges)\b|\bcpublas\b"
        r"|\bget(Device|Host)Allocator\b|\bCachingAllocator::|\bSet(CPU)?Allocator\b|\bThreadLocalDebugInfo\b|\bMemoryReportingInfoBase\b"
        r"|\bSavedTensorDefaultHooks\w*|\b(OutOfMemory|Accelerator)Error\b|\bDispatcher::",
        [r"streambp/runtime/torch_private\.(h|cc)$", r"scripts/compare/authors_meter\.cc$", r"verify/tests/"],
    ),
    (r"\bProcessGroupGloo\b|\bgloo::|\bgloo/", [r"streambp/distributed/transport/(process_ranks\.cc$|gloo_declarations/)"]),
    (r"\bProcessGroupNCCL\b", [r"streambp/distributed/transport/nccl_library\.cc$"]),
]

# Written by programs, or other people's.
UNCHECKED = ("results/",)
