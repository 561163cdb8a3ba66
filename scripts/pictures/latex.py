"""Figures as a LaTeX table (package booktabs), and texts that LaTeX takes as they are."""

import math

SPECIAL = {"\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_", "^": r"\textasciicircum{}",
           "~": r"\textasciitilde{}", "<": r"\ensuremath{<}", ">": r"\ensuremath{>}", "|": r"\ensuremath{|}", "\u00b7": r"\ensuremath{\cdot}",
           "\u2715": r"\ensuremath{\times}", "\u00d7": r"\ensuremath{\times}", "\u2212": r"\ensuremath{-}"}


def latex_text(text):
    return "".join(SPECIAL.get(character, character) for character in text)


def digits(value):
    """Three of them, and none after the point where there are more before it: 0.152, 17.5, 2,079."""
    after = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(0, after)}f}"


def booktabs(about, corner, columns, rows):
    """A tabular of rows (name, cells): names left, numbers right, columns under the head "sequence length". `about` is a comment above it.
    Cells are LaTeX already."""
    count = len(columns)
    lines = [f"% {' '.join(about.split())}", "% \\usepackage{booktabs}", rf"\begin{{tabular}}{{l{'r' * count}}}", r"\toprule",
             rf" & \multicolumn{{{count}}}{{c}}{{sequence length (tokens)}} \\", rf"\cmidrule(l){{2-{count + 1}}}",
             " & ".join([latex_text(corner), *map(latex_text, columns)]) + r" \\", r"\midrule"]
    lines += [" & ".join([latex_text(name), *cells]) + r" \\" for name, cells in rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"
