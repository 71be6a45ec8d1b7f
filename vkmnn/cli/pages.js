"use strict";

// Tables are sorted by the column whose head is clicked.
function sortTable(header) {
  const table = header.closest("table");
  const column = header.cellIndex;
  const number = header.classList.contains("n");
  const now = header.getAttribute("aria-sort");
  const down = now ? now === "ascending" : number && column > 0;
  const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
  const compare = number
    ? (a, b) => Number(value(a)) - Number(value(b))
    : (a, b) => value(a).localeCompare(value(b));
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => (down ? compare(b, a) : compare(a, b)));
  table.tBodies[0].append(...rows);
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", down ? "descending" : "ascending");
}
for (const button of document.querySelectorAll("thead th > button")) {
  button.addEventListener("click", () => sortTable(button.parentElement));
}
