// What all tables have above them: which columns are shown, a copy, and the whole text of the cell in focus.
(() => {
  const tableOf = (element) => element.closest && element.closest(".table");
  const api = (table) => window.dash_ag_grid.getApi(table.dataset.grid);

  // The whole text of a cell: what its tooltip says, where the cell holds a short form.
  function whole(cell) {
    const grid = api(tableOf(cell));
    const row = grid && grid.getDisplayedRowAtIndex(Number(cell.closest("[row-index]").getAttribute("row-index")));
    const { tooltipField } = (grid && grid.getColumnDef(cell.getAttribute("col-id"))) || {};
    return String((tooltipField && row && row.data[tooltipField]) || cell.innerText);
  }

  function copied(text, said) {
    const tell = () => { said.textContent = "copied"; };
    const byHand = () => { // without TLS browsers give no clipboard
      const area = Object.assign(document.createElement("textarea"), { value: text, className: "hidden" });
      const before = document.activeElement;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      before.focus();
      tell();
    };
    if (navigator.clipboard) navigator.clipboard.writeText(text).then(tell, byHand);
    else byHand();
  }

  function asText(grid) {
    const columns = grid.getAllDisplayedColumns();
    const lines = [columns.map((one) => grid.getColumnDef(one).headerName)];
    grid.forEachNodeAfterFilterAndSort((row) => lines.push(columns.map((one) => {
      const { tooltipField } = grid.getColumnDef(one);
      return (tooltipField && row.data[tooltipField]) || grid.getCellValue({ rowNode: row, colKey: one, useFormatter: true });
    })));
    return lines.map((line) => line.map((cell) => String(cell ?? "").replace(/[\t\n]/g, " ")).join("\t")).join("\n");
  }

  function columns(table, button) {
    const open = table.querySelector(".table-columns");
    button.setAttribute("aria-expanded", String(!open));
    if (open) return open.remove();
    const box = Object.assign(document.createElement("fieldset"), { className: "table-columns" });
    box.append(Object.assign(document.createElement("legend"), { className: "hidden", textContent: "Columns shown" }));
    for (const one of api(table).getColumns()) {
      const label = document.createElement("label");
      const tick = Object.assign(document.createElement("input"), { type: "checkbox", checked: one.isVisible() });
      tick.addEventListener("change", () => api(table).setColumnsVisible([one], tick.checked));
      label.append(tick, ` ${api(table).getColumnDef(one).headerName}`);
      box.append(label);
    }
    return table.querySelector(".table-bar").after(box);
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest && event.target.closest("[data-table]");
    const table = button && tableOf(button);
    if (!table || !api(table)) return;
    if (button.dataset.table === "columns") columns(table, button);
    else copied(asText(api(table)), table.querySelector(".table-cell"));
  });
  document.addEventListener("focusin", (event) => {
    const cell = event.target;
    if (cell.matches && cell.matches(".table .ag-cell")) tableOf(cell).querySelector(".table-cell").textContent = whole(cell);
  });
  document.addEventListener("keydown", (event) => {
    const cell = event.target;
    if (!cell.matches || !cell.matches(".table .ag-cell")) return;
    if (event.key === "Enter") cell.click();
    else if (event.key === "c" && (event.ctrlKey || event.metaKey) && !String(window.getSelection())) {
      copied(whole(cell), tableOf(cell).querySelector(".table-cell"));
    }
  });
})();
