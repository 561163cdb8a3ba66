"""The versions with which cases are made: those of each case are in its case.json."""

from importlib.metadata import version

# Cases of the earlier models are of the first of each, those of models that it does not know of the second.
KNOWN = {
    "torch": ("2.11.0", "2.15.0"),
    "transformers": ("5.23.0", "5.24.0"),
    "trl": ("1.16.0",),
    "peft": ("0.21.2",),
    "verl": ("0.9.1",),
    "sentence-transformers": ("6.2.0",),
}


def installed(*packages):
    """{package: version} of `packages` as they are installed."""
    return {package: version(package).partition("+")[0] for package in packages}


def unexpected(*packages):
    """What is to be said of a package of another version than those known; empty: all are known."""
    return "; ".join(f"{package} {found}: expected {' or '.join(KNOWN[package])}" for package, found in installed(*packages).items() if found not in KNOWN[package])
