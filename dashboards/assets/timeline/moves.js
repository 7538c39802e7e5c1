// Where to look next, what an event leads to, the ruler, and the critical path.
(() => {
  const space = window.gpuscopeTimeline = window.gpuscopeTimeline || {};
  const SNAP = 6; // pixels within which an end of a range is drawn to an event's edge
  const PATH = { host: "#009e73", device: "#0072b2", communication: "#e69f00" }; // gpuscope/words/palette.py

  // Null where nobody answers, as in a file that was shared.
  const asked = (timeline, what) => fetch(`${timeline.setup.url}/${what}`).then((answer) => (answer.ok ? answer.json() : null)).catch(() => null);

  // The next of what the page lists: gaps and steps become the range, a collective is selected.
  function jump(timeline, kind, by) {
    const all = kind === "row" ? rows(timeline) : timeline.setup.jumps[kind];
    if (!all.length) return timeline.say("There is none.");
    const known = timeline.jumped && timeline.jumped.kind === kind;
    const place = known ? (timeline.jumped.place + by + all.length) % all.length : by > 0 ? 0 : all.length - 1;
    timeline.jumped = { kind, place };
    const one = all[place];
    const room = Math.max(one.end - one.start, 1000);
    timeline.selected = timeline.flows = timeline.range = null;
    timeline.mark = [one.start, one.end];
    timeline.why = one.said;
    timeline.show(one.start - room, one.end + room);
    timeline.say(one.said);
    timeline.write(false); // the mark is part of what is said of the event
    return one.ref ? timeline.ask(one.ref) : timeline.choose([one.start, one.end]);
  }

  // Those of the query in the address.
  const rows = ({ setup: { rows: found = [] } }) => found.map(([rank, start, end], place) => (
    { start, end: Math.max(end, start + 1), ref: "", said: `row ${place + 1} of ${found.length}, rank ${rank}` }
  ));

  // What the selected event leads to: both stay in sight.
  async function follow(timeline) {
    const from = timeline.selected;
    if (!from) return timeline.say("Choose an event first.");
    const found = await asked(timeline, `follow?ref=${from.ref}`);
    if (!found) return timeline.say("Nothing recorded leads on from here.");
    timeline.why = found.why;
    const [low, high] = [Math.min(from.start, found.start), Math.max(from.end, found.end)];
    if (low < timeline.from || high > timeline.to) timeline.show(low - (high - low) / 4, high + (high - low) / 4);
    return timeline.ask(found.ref);
  }

  // The first call keeps an edge of the selected event, the second makes a range from there to an edge of another.
  function ruler(timeline, edge) {
    if (!timeline.selected) return timeline.say("Choose an event first.");
    const at = timeline.selected[edge];
    if (timeline.edge === undefined || timeline.edge === at) {
      timeline.edge = at;
      return timeline.say(`Ruler from ${space.offset(at)}: choose another event, then E for its start, Shift + E for its end.`);
    }
    const range = [Math.min(timeline.edge, at), Math.max(timeline.edge, at)];
    timeline.edge = undefined;
    return timeline.choose(range);
  }

  // The edge of an event of a row that is next to a place, at most some pixels away; else the place itself.
  function snapped(timeline, track, x) {
    let [best, off] = [timeline.time(x), SNAP];
    if (track >= 0 && !timeline.counter(track)) timeline.visible(track, (event) => {
      for (const at of [event.start, event.end]) {
        if (Math.abs(timeline.x(at) - x) < off) [best, off] = [at, Math.abs(timeline.x(at) - x)];
      }
    });
    return best;
  }

  // Shown or hidden; asked for once.
  async function criticalPath(timeline, keep = false) {
    const button = document.querySelector("[data-act=path]");
    timeline.path = timeline.path ? null : timeline.knownPath || [];
    if (button) button.setAttribute("aria-pressed", String(Boolean(timeline.path)));
    if (keep) timeline.change(false);
    if (!timeline.path || timeline.knownPath) return timeline.draw();
    timeline.knownPath = (await asked(timeline, "path")) || [];
    if (timeline.path) timeline.path = timeline.knownPath;
    const ranks = new Set(timeline.knownPath.map(([rank]) => rank));
    const sums = timeline.knownPath.reduce((sum, [, on, start, end]) => ({ ...sum, [on]: (sum[on] || 0) + end - start }), {});
    const parts = Object.entries(sums).map(([on, ns]) => `${on} ${space.duration(ns)}`).join(", ");
    timeline.say(ranks.size ? `Critical path over ${ranks.size} ${ranks.size > 1 ? "ranks" : "rank"}: ${parts}` : "No critical path: the recording can't be replayed.");
    return timeline.draw();
  }

  // A band in the line of each rank, and a stroke where the path goes on at another rank.
  function paintPath(timeline, pen, shown) {
    if (!timeline.path || !timeline.path.length) return;
    const lines = new Map(shown.filter((one) => /^r\d+$/.test(one.key)).map((one) => [Number(one.key.slice(1)), one.top + space.ROW - 7]));
    pen.save();
    pen.beginPath();
    pen.rect(timeline.label, timeline.pinnedHeight(), timeline.plot, timeline.height);
    pen.clip();
    let before = null;
    for (const [rank, on, start, end] of timeline.path) {
      const y = lines.get(rank);
      const [x, until] = [timeline.x(start), timeline.x(end)];
      pen.fillStyle = PATH[on];
      if (y !== undefined && until >= timeline.label) pen.fillRect(x, y, Math.max(until - x, 1), 6);
      if (before && before.y !== undefined && y !== undefined && before.y !== y) pen.fillRect(x, Math.min(before.y, y), 1.5, Math.abs(y - before.y) + 6);
      if (x > timeline.label + timeline.plot) break;
      before = { y };
    }
    pen.restore();
  }

  // Rows of a query: solid in the line of their rank, a tint over its rows. By pixels, as thousands may lie in one.
  function paintFound(timeline, pen, shown) {
    const found = timeline.setup.rows || [];
    if (!found.length) return;
    const bands = new Map(); // by rank
    for (const [rank, start, end] of found) {
      if (end < timeline.from || start > timeline.to) continue;
      const x = Math.max(Math.floor(timeline.x(start)), timeline.label);
      const until = Math.min(Math.max(Math.ceil(timeline.x(end)), x + 2), timeline.label + timeline.plot);
      if (!bands.has(rank)) bands.set(rank, new Uint8Array(timeline.label + Math.ceil(timeline.plot) + 1));
      bands.get(rank).fill(1, x, until - (until - x > 3 ? 1 : 0)); // neighbours stay two
    }
    pen.save();
    pen.fillStyle = timeline.setup.marks[document.documentElement.dataset.mantineColorScheme === "dark" ? "rows_dark" : "rows"];
    for (const one of shown) {
      const of = /^r(\d+)(\.|$)/.exec(one.key);
      const band = of && bands.get(Number(of[1]));
      if (!band || one.pinned || one.top < timeline.pinnedHeight()) continue;
      const [top, height] = of[2] ? [one.top, space.ROW] : [one.top + 2, 9];
      pen.globalAlpha = of[2] ? 0.14 : 1;
      for (let x = band.indexOf(1); x >= 0;) {
        const next = band.indexOf(0, x);
        pen.fillRect(x, top, (next < 0 ? band.length : next) - x, height);
        x = next < 0 ? -1 : band.indexOf(1, next);
      }
    }
    pen.restore();
  }

  Object.assign(space, { paintFound, jump, follow, ruler, snapped, criticalPath, paintPath });
})();
