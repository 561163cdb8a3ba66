#!/usr/bin/env python3
"""Opens pages of streambp-bench report in headless Chromium and checks what a reader sees.

    scripts/check_report.py out/report.html [--pictures DIR]

At 320 and at 1,280 pixels, light and dark: the script ran without an error, nothing is wider than the window, no chart is cut, no text of the page
is smaller than 8 pixels, and text stands out from what is behind it (a contrast of 4.5). The page's own buttons are pressed: axes, a series, a
filter, a column. --pictures keeps a PNG of each.

Exit codes: 0 all is well; 1 a page has a fault; 77 there is no Chromium: nothing was checked.
"""

import argparse
import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SKIPPED = 77
WIDTHS = (320, 1280)
# Runs in the page after its own script and writes what it finds into the document, which --dump-dom prints.
PROBE = """
<script>
(() => {
  const faults = [...(window.pageErrors || [])];
  const need = (good, what) => { if (!good) faults.push(what); };
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  need(wide <= 0, `the page is ${wide} pixels wider than the window`);
  for (const chart of document.querySelectorAll(".chart"))
    need(chart.scrollWidth <= chart.clientWidth + 1, `a chart of ${chart.scrollWidth} pixels in a frame of ${chart.clientWidth}`);
  const rgb = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = (c) => { const f = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; return 0.2126 * f(c[0]) + 0.7152 * f(c[1]) + 0.0722 * f(c[2]); };
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const c = rgb(getComputedStyle(one).backgroundColor);
      if (c.length === 3 || c[3] > 0.5) return c;
    }
    return [255, 255, 255];
  };
  const seen = new Set();
  for (const element of document.querySelectorAll("h1, h2, p, li, td, th, a, button, summary, figcaption, caption, svg text, footer")) {
    const box = element.getBoundingClientRect();
    if (!box.width || !element.textContent.trim()) continue;
    const style = getComputedStyle(element);
    const isDrawn = element instanceof SVGElement;
    const scale = isDrawn ? element.ownerSVGElement.getBoundingClientRect().width / element.ownerSVGElement.viewBox.baseVal.width : 1;
    const size = parseFloat(style.fontSize) * scale;
    const [a, b] = [light(rgb(isDrawn ? style.fill : style.color)), light(behind(element))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const what = `${element.tagName} "${element.textContent.trim().slice(0, 30)}"`;
    if (size < 8 && !seen.has(element.tagName + "size")) { seen.add(element.tagName + "size"); faults.push(`${what}: text of ${size.toFixed(1)} pixels`); }
    if (contrast < 4.5 && !seen.has(element.tagName + "contrast")) { seen.add(element.tagName + "contrast"); faults.push(`${what}: contrast ${contrast.toFixed(1)}`); }
  }
  const shown = (selector) => [...document.querySelectorAll(selector)].filter((one) => getComputedStyle(one).display !== "none").length;
  const axes = document.getElementById("axes");
  if (shown("svg.log")) {
    axes.click();
    need(shown("svg.lin") && !shown("svg.log"), "the button of the axes shows no linear ones");
    axes.click();
    need(!shown("svg.lin") && shown("svg.log"), "the button of the axes does not go back");
  }
  const key = document.querySelector("button.key");
  if (key) {
    key.click();
    need(document.querySelector("svg g.off"), "a button of the legend hides no series");
    key.click();
    need(!document.querySelector("svg g.off"), "a button of the legend does not show its series again");
  }
  const point = document.querySelector("svg .pt");
  if (point) {
    point.dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));
    need(!document.getElementById("tip").hidden && document.getElementById("tip").textContent, "a point shows no text");
  }
  const field = document.querySelector("p.filter input");
  if (field) {
    const rows = [...field.closest("p").nextElementSibling.querySelectorAll("tbody tr")];
    field.value = "no row has this";
    field.dispatchEvent(new Event("input"));
    need(rows.every((row) => row.hidden), "the filter keeps rows that do not match");
    field.value = "";
    field.dispatchEvent(new Event("input"));
    need(rows.every((row) => !row.hidden), "an empty filter hides rows");
  }
  for (const head of document.querySelectorAll("#cells thead th")) head.querySelector("button").click();
  need(!document.querySelector("#cells thead th") || document.querySelectorAll("#cells th[aria-sort]").length === 1, "a column is not sorted");
  const memory = [...document.querySelectorAll("#cells thead th")].find((head) => head.textContent.startsWith("memory"));
  if (memory) {
    const bytes = (cell) => { const [number, unit] = cell.textContent.trim().split(" "); return number === "-" ? -1 : Number(number) * { B: 1, KB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12 }[unit]; };
    memory.querySelector("button").click();
    const sorted = [...document.querySelectorAll("#cells tbody tr")].map((row) => bytes(row.cells[memory.cellIndex]));
    need(sorted.every((one, i) => i === 0 || sorted[i - 1] <= one), "the column of memory is not in the order of its bytes");
  }
  need(!/\\b(src|href)="(https?:)?\\/\\//i.test(document.documentElement.outerHTML), "something outside the page is asked for");
  const report = document.createElement("pre");
  report.id = "faults";
  report.textContent = JSON.stringify(faults);
  document.body.append(report);
})();
</script>
"""
ERRORS = "<script>window.pageErrors = []; addEventListener('error', (e) => pageErrors.push('script: ' + e.message)); console.error = (...a) => pageErrors.push('console: ' + a.join(' '));</script>"


def chromium(arguments):
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory() as profile:
        command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, errors="replace")


def faults_of(page, width, dark, folder):
    """What is wrong with a page in a window of this width. Headless Chromium has no narrower window than 500 pixels: a frame is."""
    text = page.read_text(encoding="utf-8")
    probed = folder / "probed.html"
    probed.write_text(text.replace("<head>", "<head>" + ERRORS, 1).replace("</body>", PROBE + "</body>"), encoding="utf-8")
    outer = folder / "frame.html"
    outer.write_text(
        f'<!DOCTYPE html><body style="margin:0"><iframe src="probed.html" style="border:0;width:{width}px;height:2000px"></iframe>'
        '<script>document.querySelector("iframe").onload = (e) => { const p = e.target.contentDocument.getElementById("faults"); '
        'const q = document.createElement("pre"); q.id = "found"; q.textContent = p ? p.textContent : "none"; document.body.append(q); };</script>',
        encoding="utf-8",
    )
    theme = ["--blink-settings=preferredColorScheme=0"] if dark else ["--blink-settings=preferredColorScheme=1"]
    done = chromium([*theme, "--allow-file-access-from-files", f"--window-size={max(width, 500)},2000", "--virtual-time-budget=20000", "--dump-dom", outer.as_uri()])
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    if not found or found[1] == "none":
        return [f"the page's script did not come to its end: {done.stderr.strip()[-300:]}"]
    return json.loads(html.unescape(found[1]))


def picture(page, width, dark, path):
    folder = path.parent
    frame = folder / "frame.html"
    frame.write_text(f'<!DOCTYPE html><body style="margin:0"><iframe src="{page.resolve().as_uri()}" style="border:0;width:{width}px;height:4000px"></iframe>')
    theme = "--blink-settings=preferredColorScheme=" + ("0" if dark else "1")
    chromium([theme, "--allow-file-access-from-files", f"--window-size={width},4000", f"--screenshot={path}", frame.as_uri()])
    frame.unlink()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", type=Path, nargs="+")
    parser.add_argument("--pictures", type=Path, help="keep PNGs in this folder")
    options = parser.parse_args()
    if not (shutil.which("chromium") or shutil.which("chromium-browser")):
        print("skipped: no chromium on this machine (apt install chromium)")
        return SKIPPED
    count = 0
    for page in options.pages:
        for width in WIDTHS:
            for dark in (False, True):
                with tempfile.TemporaryDirectory() as folder:
                    found = faults_of(page, width, dark, Path(folder))
                name = f"{page} at {width} pixels, {'dark' if dark else 'light'}"
                for fault in found:
                    print(f"{name}: {fault}")
                count += len(found)
                if options.pictures:
                    options.pictures.mkdir(parents=True, exist_ok=True)
                    picture(page, width, dark, options.pictures / f"{page.stem}-{width}-{'dark' if dark else 'light'}.png")
    print(f"{len(options.pages)} pages: {count} faults")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
