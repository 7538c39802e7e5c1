// Browser-side callbacks: only the address, nothing about traces.
window.dash_clientside = window.dash_clientside || {};
window.dash_clientside.gpuscope = (() => {
  const keep = () => window.dash_clientside.no_update;
  const params = () => new URLSearchParams(window.location.search);
  const text = (query) => (query.toString() ? "?" + query.toString() : "");
  const put = (query, key, value) => (value ? query.set(key, value) : query.delete(key));

  return {
    // Put the filters into the address; a new run resets what belonged to the old one.
    filter(run, ranks, steps, runs) {
      const query = params();
      const before = text(query);
      const first = runs[0].value;
      if (run !== (query.get("run") || first)) {
        ["ranks", "steps", "from", "to", "event", "mark", "find"].forEach((key) => query.delete(key));
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
    links: (query, path, ids) => [ids.map((id) => id.path + (query || "")), ids.map((id) => id.path === path)],
    turn: (_clicks, theme) => (theme === "dark" ? "light" : "dark"),
    // The timeline's window after a drag, a scroll or a button. Times are BigInt: they exceed a double's 53 bits.
    window(layout, ...rest) {
      const [now, bounds] = rest.slice(-2);
      const trigger = window.dash_clientside.callback_context.triggered_id;
      const [low, high, base] = [BigInt(bounds.from), BigInt(bounds.to), BigInt(bounds.base)];
      let [from, to] = [BigInt(now.from), BigInt(now.to)];
      if (trigger && trigger.key) {
        if (!window.dash_clientside.callback_context.triggered[0].value) return keep();
        const width = to - from;
        const move = {
          in: [width / 4n, -width / 4n], out: [-width / 2n, width / 2n],
          left: [-width / 2n, -width / 2n], right: [width / 2n, width / 2n], all: [low - from, high - to],
        }[trigger.key];
        [from, to] = [from + move[0], to + move[1]];
      } else {
        const range = layout && [layout["xaxis.range[0]"], layout["xaxis.range[1]"]];
        if (!range || range[0] === undefined) return keep();
        [from, to] = range.map((x) => base + BigInt(Math.round(x)));
      }
      const room = high - low;  // at most the run's length beyond each side
      from = from < low - room ? low - room : from;
      to = to > high + room ? high + room : to;
      if (to - from < 10n) to = from + 10n;
      return { from: String(from), to: String(to), moved: true };
    },
    // A cell of rank by step, a kernel's name: shown in the timeline.
    cell(click) {
      const cell = click && click.points.length && click.points[0];
      if (!cell) return [keep(), keep()];
      const query = params();
      query.set("ranks", cell.y);
      query.set("steps", `${cell.x}-${cell.x}`);
      ["from", "to", "event", "mark"].forEach((key) => query.delete(key));
      return ["/timeline", text(query)];
    },
    kernel(cell) {
      if (!cell || cell.colId !== "name") return [keep(), keep()];
      const query = params();
      query.set("find", cell.value);
      return ["/timeline", text(query)];
    },
    pick(click) {
      const ref = click && click.points.length && click.points[0].customdata;
      return ref && ref[0] !== "s" ? ref : keep();
    },
    // Keep the timeline's state in the address, replaced in place: no history entry per zoom.
    // Also called once after the page is drawn; then nothing has changed.
    address(shown, event, find, tracks, bounds) {
      const query = params();
      const before = text(query);
      if (shown.moved) {
        query.set("from", shown.from);
        query.set("to", shown.to);
      }
      put(query, "event", event);
      put(query, "find", (find || "").trim());
      const kinds = (tracks || []).join(",");
      if (kinds !== bounds.tracks || query.has("tracks")) query.set("tracks", kinds || "none");
      if (text(query) === before) return [keep(), keep()];
      window.history.replaceState(window.history.state, "", window.location.pathname + text(query));
      return [text(query), text(query)];
    },
    scheme: (theme) => theme || "light",
  };
})();
