"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // Texts of points and bars next to the pointer, or to the point that has the focus.
  const tip = document.getElementById("tip");
  const texts = new WeakMap();
  for (const point of all("svg .pt")) {
    const title = point.querySelector("title");
    texts.set(point, title.textContent);
    point.setAttribute("aria-label", title.textContent);
    title.remove();
  }
  const show = (point) => {
    tip.textContent = texts.get(point);
    tip.hidden = false;
    const box = point.getBoundingClientRect();
    const left = Math.min(box.right + 8, document.documentElement.clientWidth - tip.offsetWidth - 8);
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${Math.max(8, box.top - tip.offsetHeight - 8)}px`;
  };
  const pointOf = (event) => event.target.closest && event.target.closest("svg .pt");
  for (const name of ["pointerover", "focusin"]) {
    document.addEventListener(name, (event) => {
      const point = pointOf(event);
      if (point) show(point);
      else if (name === "pointerover") tip.hidden = true;
    });
  }
  document.addEventListener("focusout", () => { tip.hidden = true; });
  document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

  // Logarithmic or linear axes, of all charts.
  const axes = document.getElementById("axes");
  axes.parentElement.hidden = !all("svg.lin").length;
  axes.addEventListener("click", () => {
    axes.textContent = document.body.classList.toggle("linear") ? "linear" : "logarithmic";
  });

  // Series of a figure on and off.
  for (const key of all("button.key")) {
    const name = [...key.classList].find((one) => /^s\d$/.test(one));
    const index = all("button.key." + name, key.parentElement).indexOf(key);
    key.addEventListener("click", () => {
      const on = key.getAttribute("aria-pressed") !== "true";
      key.setAttribute("aria-pressed", on);
      for (const svg of all(".chart svg", key.closest("figure"))) {
        const group = all("g." + name, svg)[index];
        if (group) group.classList.toggle("off", !on);
      }
    });
  }

  // Rows that hold every word of the filter.
  for (const filter of all("p.filter")) {
    const rows = all("tbody tr", filter.nextElementSibling);
    const input = filter.querySelector("input");
    const output = filter.querySelector("output");
    filter.hidden = false;
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        shown += !row.hidden;
      }
      output.textContent = `${shown} of ${rows.length}`;
    });
  }

  // Columns sorted by a click on their names: by the values of their cells (data-v), the numbers that they show, or their texts. "-" is least.
  const units = { B: 1, KB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12 };
  const value = (row, column) => {
    const cell = row.cells[column];
    if (!cell) return "";
    if (cell.dataset.v !== undefined) return Number(cell.dataset.v);
    const text = cell.textContent.trim();
    if (text === "-") return -Infinity;
    const [, digits, unit] = /^([-+]?[\d,]*\.?\d+(?:e[-+]?\d+)?)(?: ([KMGT]?B|s|%))?$/.exec(text) || [];
    return digits === undefined ? text : Number(digits.replaceAll(",", "")) * (units[unit] || 1);
  };
  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b || 0;
    if (typeof a === "number") return -1;
    if (typeof b === "number") return 1;
    return a.localeCompare(b);
  };
  for (const head of all("thead th")) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const descending = head.getAttribute("aria-sort") === "ascending";
      for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const body = head.closest("table").tBodies[0];
      const column = head.cellIndex;
      const sorted = [...body.rows].sort((a, b) => compare(value(a, column), value(b, column)));
      body.append(...(descending ? sorted.reverse() : sorted));
    });
  }

  // A command's button copies it, where the browser lets a page do so.
  for (const command of navigator.clipboard ? all("td code") : []) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "copy";
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(command.textContent);
        button.textContent = "copied";
      } catch {
        button.textContent = "select it above";
      }
    });
    command.after(button);
  }
})();
