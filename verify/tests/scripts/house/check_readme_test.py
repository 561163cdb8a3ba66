"""scripts/house/check_readme.py: which links of a page lead nowhere.

check_readme_test.py PROJECT
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(sys.argv[1]) / "scripts/house"))

import check_readme  # noqa: E402

PAGE = """# A page
## What `sb.patch` does, and *why*?
### Sums_of x^2 - and [links](other.md#there)
## Twice
## Twice ##
```sh
# no heading
```
<a name="by-hand"></a>
"""


def main():
    names = ["a-page", "what-sbpatch-does-and-why", "sums_of-x2---and-links", "twice", "twice-1", "by-hand"]
    assert check_readme.anchors(PAGE) == names, check_readme.anchors(PAGE)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.md"
        page.write_text(PAGE)
        (Path(folder) / "other.md").write_text("## There\n")
        (Path(folder) / "code.py").write_text("pass\n")
        links = check_readme.LINK.findall("[a](other.md) [b](other.md#there) [c](#twice-1) [d](code.py#L1) [e](https://example.org/#x) [f](https://example.org)")
        assert len(links) == 6, links
        for target, anchor in links:
            assert check_readme.complaint_of_link(page, PAGE, target, anchor) is None, (target, anchor)
        for target, anchor in check_readme.LINK.findall("[a](none.md) [b](other.md#here) [c](#no-heading) [d](#twice-2)"):
            assert "link to" in check_readme.complaint_of_link(page, PAGE, target, anchor), (target, anchor)


main()
