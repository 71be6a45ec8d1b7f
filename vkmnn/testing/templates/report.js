"use strict";
// Sorting by a click on a column's head, and filters; the page is complete without either.
(() => {
  const value = (row, column) => {
    const cell = row.cells[column];
    const text = cell.dataset.v ?? cell.textContent.trim();
    const number = parseFloat(text);
    return Number.isNaN(number) ? text : number;
  };
  const order = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b
      : String(a).localeCompare(String(b), undefined, { numeric: true });

  const sort = (head) => {
    const descends = head.getAttribute("aria-sort")
      ? head.getAttribute("aria-sort") === "ascending" : head.classList.contains("n");
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", descends ? "descending" : "ascending");
    const body = head.closest("table").tBodies[0];
    const rows = [...body.rows].sort((a, b) =>
      (descends ? -1 : 1) * order(value(a, head.cellIndex), value(b, head.cellIndex)));
    body.append(...rows);
  };
  for (const head of document.querySelectorAll(".sortable thead th")) {
    head.tabIndex = 0;
    head.title = "sort";
    head.addEventListener("click", () => sort(head));
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(head); });
  }

  const field = (name) => document.getElementById(name);
  const names = ["text", "outcome", "verdict", "device"].filter(field);
  const kernels = [...document.querySelectorAll(".kernel")];
  const filter = () => {
    const words = field("text").value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = names.slice(1).map((name) => [name, field(name).value]).filter((pair) => pair[1]);
    const active = words.length > 0 || wanted.length > 0;
    let shown = 0, all = 0;
    for (const kernel of kernels) {
      let here = 0;
      for (const row of kernel.querySelectorAll("tbody tr")) {
        const text = row.cells[0].textContent.toLowerCase();
        const fits = words.every((word) => text.includes(word))
          && wanted.every(([name, what]) => row.dataset[name] === what);
        row.hidden = !fits;
        here += fits;
        all += 1;
      }
      kernel.hidden = here === 0;
      if (active) kernel.open = here > 0;
      shown += here;
    }
    field("shown").textContent = active ? `${shown} of ${all} variants` : `${all} variants`;
  };
  for (const name of names) field(name).addEventListener("input", filter);
  field("filters").addEventListener("submit", (event) => event.preventDefault());

  // A link names a kernel (#unary), or filters (#?text=f32&outcome=failed).
  const follow = () => {
    const hash = decodeURIComponent(location.hash.slice(1));
    if (hash.startsWith("?")) {
      for (const [name, what] of new URLSearchParams(hash.slice(1)))
        if (names.includes(name)) field(name).value = what;
      filter();
    } else if (hash) {
      const kernel = document.getElementById(hash);
      if (kernel && kernel.matches(".kernel")) { kernel.open = true; kernel.scrollIntoView(); }
    }
  };
  window.addEventListener("hashchange", follow);
  filter();
  follow();
})();
