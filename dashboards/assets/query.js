// The query page: its box goes into the address; rows lead to the timeline.
window.dash_clientside = window.dash_clientside || {};
window.dash_clientside.gpuscope_query = {
  ask(clicks, sql) {
    if (!clicks) return window.dash_clientside.no_update;
    const query = new URLSearchParams(window.location.search);
    if ((sql || "").trim()) query.set("sql", sql.trim());
    else query.delete("sql");
    return `?${query}`;
  },
  example: (sql) => sql || window.dash_clientside.no_update,
};
window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {};
window.dashAgGridComponentFunctions.TimelineLink = (cell) => (
  cell.value ? window.React.createElement(window.dash_core_components.Link, { href: cell.value, children: "show" }) : null
);
document.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || event.target.id !== "query-sql") return;
  event.preventDefault();
  document.getElementById("query-run").click();
});
