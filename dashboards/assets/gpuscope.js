// Browser-side callbacks: only the address, nothing about traces.
window.dash_clientside = window.dash_clientside || {};
window.dash_clientside.gpuscope = (() => {
  const keep = () => window.dash_clientside.no_update;
  const params = () => new URLSearchParams(window.location.search);
  const text = (query) => (query.toString() ? "?" + query.toString() : "");
  // Parameters of pages that follow them without being drawn anew.
  const LIVE = {
    "/timeline": () => window.gpuscopeTimeline.KEPT,
    "/advice": () => ["bucket", "link", "micro", "workers", "without", "replaced"],
  };
  let drawn = "";  // what the page was last drawn for
  const put = (query, key, value) => (value ? query.set(key, value) : query.delete(key));

  return {
    // Put the filters into the address; a new run resets what belonged to the old one.
    filter(run, ranks, steps, runs) {
      const query = params();
      const before = text(query);
      const first = runs[0].value;
      if (run && run !== (query.get("run") || first)) { // none is chosen while the address names one that is not open
        ["ranks", "steps", "from", "to", "event", "mark", "find", "range", "pin", "tree", "finding"].forEach((key) => query.delete(key));
        put(query, "run", run);
      } else {
        put(query, "ranks", (ranks || "").trim());
        put(query, "steps", (steps || "").trim());
        if ((steps || "").trim() !== (params().get("steps") || "")) {
          ["from", "to", "mark"].forEach((key) => query.delete(key));
        }
      }
      return text(query) === before ? keep() : text(query);
    },
    // Controls of pages whose value is a parameter of the address.
    extra(values, ids) {
      const triggered = window.dash_clientside.callback_context.triggered_id;
      if (!triggered) return keep();
      const query = params();
      const before = text(query);
      ids.forEach((id, place) => {
        if (id.key === triggered.key) put(query, id.key, values[place] === null ? "" : String(values[place]));
      });
      return text(query) === before ? keep() : text(query);
    },
    query: (search) => search || "",
    without: (paths, ids) => ids.map((id) => ((paths || []).includes(id.path) ? "without" : "")),
    links: (query, path, ids) => {
      const page = [...document.querySelectorAll(".frame nav a")].find((link) => new URL(link.href).pathname === path);
      document.title = page ? `${page.innerText} · gpuscope` : "gpuscope";
      return [ids.map((id) => id.path + (query || "")), ids.map((id) => id.path === path)];
    },
    turn: () => (document.documentElement.dataset.mantineColorScheme === "dark" ? "light" : "dark"),
    // What the server draws the page for. The timeline follows its own part of the address without being drawn anew.
    page(path, search, theme) {
      const own = LIVE[path] ? LIVE[path]() : [];
      const query = new URLSearchParams(search || "");
      own.forEach((key) => query.delete(key));
      const dark = theme || (window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
      const key = JSON.stringify([path, text(query), path === "/timeline" ? "" : dark]);
      if (key === drawn) return keep();
      drawn = key;
      return { path: path || "/", search: search || "", theme: dark };
    },
    mount(setup) {
      window.gpuscopeTimeline.mount(setup);
      return keep();
    },
    flows(found) {
      if (window.gpuscopeTimeline.current) window.gpuscopeTimeline.current.answer(found);
      return keep();
    },
    find(text_) {
      const query = params();
      put(query, "find", (text_ || "").trim());
      window.history.replaceState(window.history.state, "", window.location.pathname + text(query));
      if (window.gpuscopeTimeline.current) window.gpuscopeTimeline.current.find(text_);
      return window.location.search;
    },
    // A cell of rank by step, a kernel's name: shown in the timeline.
    cell(click) {
      const cell = click && click.points.length && click.points[0];
      if (!cell) return [keep(), keep()];
      const query = params();
      query.set("ranks", cell.y);
      if (/[,-]/.test(cell.y)) return ["/ranks", text(query)]; // a row of several ranks
      query.set("steps", `${cell.x}-${cell.x}`);
      ["from", "to", "event", "mark"].forEach((key) => query.delete(key));
      return ["/timeline", text(query)];
    },
    // A clicked block, in words: what its hover says, as text.
    tell(click) {
      const point = click && click.points.length && click.points[0];
      if (!point) return keep();
      const area = document.createElement("textarea"); // undoes the escapes of a hover, and runs nothing
      area.innerHTML = String(point.customdata || "").replace(/<br>/g, "\n");
      return area.value;
    },
    // A bar or point that names the address it leads to.
    lead(clicks) {
      const trigger = window.dash_clientside.callback_context.triggered[0];
      const point = trigger && trigger.value && trigger.value.points[0];
      const to = point && (Array.isArray(point.customdata) ? point.customdata[0] : point.customdata);
      if (!to || !String(to).startsWith("/")) return [keep(), keep()];
      const address = new URL(to, window.location.origin);
      return [address.pathname, address.search];
    },
    kernel(cell) {
      if (!cell || cell.colId !== "short") return [keep(), keep()];
      const query = params();
      query.set("find", String(cell.rowId).replace(/^\d+ /, "").slice(0, 200)); // the short name need not be a part of the whole
      return ["/timeline", text(query)];
    },
    scheme: (theme) => theme || (window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"),
  };
})();
