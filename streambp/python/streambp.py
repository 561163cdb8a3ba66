"""The package's former name. `streambp` is the name of the StreamBP authors' own package, which is found first where it is installed, being a folder."""

import sys

import streambp_bench

print("streambp: this package is `import streambp_bench` now; the name streambp is that of the authors' package", file=sys.stderr)
sys.modules[__name__] = streambp_bench
