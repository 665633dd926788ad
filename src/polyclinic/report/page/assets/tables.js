// Tables that a press on a column's name sorts.
"use strict";
const sortings = new Map();

function tableKey(table) {
  const section = table.closest("section");
  const tables = [...section.querySelectorAll("table.sortable")];
  return section.id + "/" + tables.indexOf(table);
}

function sortTable(table, column, descending) {
  const body = table.tBodies[0];
  const total = [...body.rows].filter((row) => row.classList.contains("total"));
  const rows = [...body.rows].filter((row) => !row.classList.contains("total"));
  const value = (row) => {
    const cell = row.cells[column];
    return cell.dataset.number === undefined ? null : Number(cell.dataset.number);
  };
  rows.sort((first, second) => {
    if (column === 0) {
      const order = first.cells[0].textContent.localeCompare(second.cells[0].textContent);
      return descending ? -order : order;
    }
    const a = value(first), b = value(second);
    if (a === null || b === null) return (a === null) - (b === null);
    return descending ? b - a : a - b;
  });
  body.append(...rows, ...total);
  [...table.tHead.rows[0].cells].forEach((head, place) => {
    head.setAttribute("aria-sort", place !== column ? "none" : descending ? "descending" : "ascending");
  });
}

function prepareTables(root) {
  root.querySelectorAll("table.sortable").forEach((table) => {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => {
        const before = head.getAttribute("aria-sort");
        // Numbers are mostly wanted from the largest on, names from A on.
        const descending = before === "none" ? column > 0 : before === "ascending";
        sortings.set(tableKey(table), [column, descending]);
        sortTable(table, column, descending);
      });
    });
    const kept = sortings.get(tableKey(table));
    if (kept) sortTable(table, ...kept);
  });
}
