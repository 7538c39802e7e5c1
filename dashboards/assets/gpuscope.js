// What must run in the browser: the address, and nothing about traces.
window.dash_clientside = window.dash_clientside || {};
window.dash_clientside.gpuscope = (() => {
  const keep = () => window.dash_clientside.no_update;
  const params = () => new URLSearchParams(window.location.search);
  const text = (query) => (query.toString() ? "?" + query.toString() : "");
  const put = (query, key, value) => (value ? query.set(key, value) : query.delete(key));

  return {
    // The filters as they now are become part of the address; a new run forgets what belonged to the old one.
    filter(run, ranks, steps, runs) {
      const query = params();
      const before = text(query);
      const first = runs[0].value;
      if (run !== (query.get("run") || first)) {
        ["ranks", "steps", "from", "to", "event"].forEach((key) => query.delete(key));
        put(query, "run", run);
      } else {
        put(query, "ranks", (ranks || "").trim());
        put(query, "steps", (steps || "").trim());
        if ((steps || "").trim() !== (params().get("steps") || "")) {
          ["from", "to"].forEach((key) => query.delete(key));
        }
      }
      return text(query) === before ? keep() : text(query);
    },
    query: (search) => search || "",
    links: (query, path, ids) => [ids.map((id) => id.path + (query || "")), ids.map((id) => id.path === path)],
    turn: (_clicks, theme) => (theme === "dark" ? "light" : "dark"),
    scheme: (theme) => theme || "light",
  };
})();
