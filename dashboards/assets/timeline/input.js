// Mouse, wheel, keys and buttons of a timeline; and the address when a link or Back has changed it.
(() => {
  const space = window.gpuscopeTimeline = window.gpuscopeTimeline || {};
  const TICK = 1.2; // a tick of the wheel, or a key, zooms by this

  function listen(timeline) {
    const options = { signal: timeline.dead.signal };
    const on = (target, kind, handle, more = {}) => target.addEventListener(kind, handle, { ...options, ...more });
    on(timeline.scroller, "wheel", (event) => wheel(timeline, event), { passive: false });
    on(timeline.axis, "wheel", (event) => wheel(timeline, event), { passive: false });
    on(timeline.map, "wheel", (event) => wheel(timeline, event), { passive: false });
    on(timeline.scroller, "scroll", () => {
      timeline.scroll = timeline.scroller.scrollTop;
      timeline.draw();
      timeline.fetch();
    });
    on(timeline.canvas, "pointerdown", (event) => press(timeline, event));
    on(timeline.canvas, "pointermove", (event) => hover(timeline, event));
    on(timeline.canvas, "pointerleave", () => {
      timeline.tip.classList.remove("shown");
      timeline.pointer = null;
      timeline.over = "";
      timeline.draw();
    });
    const field = document.querySelector("#timeline-search");
    if (field) on(field, "keydown", (event) => {
      if (event.key === "Enter") whenFound(event.shiftKey ? -1 : 1);
      if (["Enter", "Escape"].includes(event.key)) timeline.scroller.focus({ preventScroll: true }); // the keys are the timeline's again
    });
    on(timeline.canvas, "dblclick", (event) => place(timeline, event).x > timeline.label && timeline.fit());
    on(timeline.axis, "pointerdown", (event) => drag(timeline, event, timeline.axis, (x, from) => {
      const by = ((from.x - x) / timeline.plot) * (from.to - from.from);
      timeline.show(from.from + by, from.to + by);
    }));
    on(timeline.map, "pointerdown", (event) => drag(timeline, event, timeline.map, (x) => centre(timeline, x), true));
    on(timeline.scroller, "keydown", (event) => key(timeline, event));
    on(timeline.scroller, "focus", () => focus(timeline, true));
    on(timeline.scroller, "blur", () => focus(timeline, false));
    on(document, "keydown", (event) => anywhere(timeline, event));
    on(document, "click", (event) => button(timeline, event));
    for (const kind of ["popstate", "_dashprivate_pushstate"]) on(window, kind, () => elsewhere(timeline));
    on(window, "resize", () => timeline.resize());
    const watch = new MutationObserver(() => timeline.recolour());
    watch.observe(document.documentElement, { attributeFilter: ["data-mantine-color-scheme"] });
    const size = new ResizeObserver(() => timeline.root.clientWidth && timeline.resize());
    size.observe(timeline.root);
    timeline.dead.signal.addEventListener("abort", () => [watch, size].forEach((one) => one.disconnect()));
  }

  function elsewhere(timeline) {
    if (!timeline.root.isConnected) return timeline.dead.abort();
    if (space.others() !== timeline.others) return undefined; // the page will be drawn anew
    clearTimeout(timeline.settling);
    timeline.moved = false;
    return timeline.read();
  }

  function place(timeline, event) {
    const box = timeline.canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  function rowAt(timeline, y) {
    const shown = timeline.shownRows();
    return shown.find((one) => one.pinned && y >= one.top && y < one.top + space.ROW)
      || shown.find((one) => !one.pinned && y >= timeline.pinnedHeight() && y >= one.top && y < one.top + space.ROW);
  }

  function wheel(timeline, event) {
    const { x } = place(timeline, event);
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      const notches = Math.max(-3, Math.min(3, event.deltaY / (event.deltaMode ? 3 : 100)));
      timeline.zoom(TICK ** notches, timeline.time(Math.max(x, timeline.label)));
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      timeline.pan((event.deltaX || event.deltaY) / timeline.plot);
    }
  }

  function centre(timeline, x) {
    const [low, high] = timeline.setup.bounds;
    const at = low + ((x - timeline.label) / timeline.plot) * (high - low);
    const half = (timeline.to - timeline.from) / 2;
    timeline.show(at - half, at + half);
  }

  // Follow the pointer until it is released; `move(x, begin)`, also at once where `now`.
  function drag(timeline, event, canvas, move, now = false) {
    if (event.button !== 0) return;
    const box = canvas.getBoundingClientRect();
    const begin = { x: event.clientX - box.left, from: timeline.from, to: timeline.to };
    const stop = new AbortController();
    canvas.setPointerCapture(event.pointerId);
    canvas.addEventListener("pointermove", (moved) => move(moved.clientX - box.left, begin), { signal: stop.signal });
    for (const kind of ["pointerup", "pointercancel"]) canvas.addEventListener(kind, () => stop.abort(), { signal: stop.signal });
    if (now) move(begin.x, begin);
  }

  // A click selects, a drag chooses a range, with Shift or the middle button it pans.
  function press(timeline, event) {
    const begin = place(timeline, event);
    const row = rowAt(timeline, begin.y);
    timeline.scroller.focus({ preventScroll: true });
    if (begin.x < timeline.label) {
      if (row && event.button === 0) label(timeline, row, event);
      return;
    }
    if (event.button > 1) return;
    const panning = event.shiftKey || event.button === 1;
    const window_ = [timeline.from, timeline.to];
    const before = timeline.range;
    const stop = new AbortController();
    let dragged = false;
    timeline.canvas.setPointerCapture(event.pointerId);
    timeline.canvas.addEventListener("pointermove", (moved) => {
      const { x } = place(timeline, moved);
      if (!dragged && Math.abs(x - begin.x) < 4) return;
      dragged = true;
      if (panning) {
        const by = ((begin.x - x) / timeline.plot) * (window_[1] - window_[0]);
        timeline.show(window_[0] + by, window_[1] + by);
      } else {
        const { y } = place(timeline, moved);
        const ends = [[begin.x, row], [x, rowAt(timeline, y)]].map(([at, over]) => {
          const inside = Math.max(timeline.label, Math.min(at, timeline.label + timeline.plot));
          return moved.altKey || !over ? timeline.time(inside) : space.snapped(timeline, over.track, inside);
        });
        timeline.range = [Math.min(...ends), Math.max(...ends)];
        timeline.draw();
      }
    }, { signal: stop.signal });
    timeline.canvas.addEventListener("pointerup", () => {
      stop.abort();
      if (dragged && !panning) timeline.choose(timeline.range.map(Math.round));
      else if (!dragged) click(timeline, row, begin, before);
    }, { signal: stop.signal });
    timeline.canvas.addEventListener("pointercancel", () => stop.abort(), { signal: stop.signal });
  }

  function label(timeline, row, event) {
    timeline.cursor = row.key;
    const pinnable = row.track >= 0 && (row.pinned || event.altKey || place(timeline, event).x > timeline.label - space.PIN);
    if (pinnable) timeline.pin(row.track);
    else if (row.node && (row.node.children.length || row.node.rows.length > 1)) timeline.toggle(row.node);
    else timeline.draw();
  }

  // What lies at a place of a row: of two streams that of the half under the pointer, of the other where it has nothing there.
  function under(timeline, row, x, y) {
    const both = space.drawn([row]).map((track) => ({ track, found: timeline.at(track, x) }));
    if (y >= row.top + space.ROW / 2) both.reverse();
    return both.find((one) => one.found) || {};
  }

  function click(timeline, row, { x, y }, before) {
    if (!row) return;
    timeline.cursor = row.key;
    const { track, found } = under(timeline, row, x, y);
    if (found) timeline.select(track, found.event || found.cells);
    else if (row.node && !row.node.rows.length && row.track < 0) timeline.toggle(row.node);
    else if (before || timeline.selected) timeline.clear();
    else timeline.draw();
  }

  // What the pointer is over, in lines: a row's whole label where it is cut, an event, a pixel's worth of them, a counter.
  function told(timeline, row, x, y) {
    if (!row) return null;
    if (x < timeline.label) return space.cut(timeline, row) ? [row.text] : null;
    const { track, found } = under(timeline, row, x, y);
    if (!found) return null;
    const { event: one, cells } = found;
    const counter = timeline.counter(track);
    if (counter) {
      const value = (share) => `${Number((share * counter.top).toPrecision(4))} ${counter.unit}`.trim();
      return [counter.label, `${value(cells.busy / cells.width)} on average in this pixel, at most ${value(cells.row / 65535)}`];
    }
    const name = timeline.tiles.label((one || cells).name) || "(no name)";
    const kind = (timeline.setup.looks[(one || cells).look] || { label: "" }).label;
    if (one) return [name, `${space.duration(one.end - one.start)} at ${space.offset(one.start)} · ${kind}`];
    return [`${Math.round((100 * cells.busy) / cells.width)} % of this pixel is busy; ${cells.count} events start in it`, `mostly ${name} · ${kind}`];
  }

  // What was typed is searched a moment later: Enter waits for that, a few seconds at most.
  function whenFound(by, tries = 30) {
    const field = document.querySelector("#timeline-search");
    const asked = new URLSearchParams(window.location.search).get("find") || "";
    const busy = asked !== field.value.trim() || document.querySelector("#timeline-found [data-dash-is-loading], #timeline-found[data-dash-is-loading]");
    if (busy && tries) setTimeout(() => whenFound(by, tries - 1), 100);
    else if (!found(by) && tries) setTimeout(() => whenFound(by, Math.min(tries, 10) - 1), 100);
  }

  // To the next of what was found, or the one before; whether there is any.
  function found(by) {
    const links = [...document.querySelectorAll("#timeline-found a.event")];
    if (!links.length) return false;
    const now = links.findIndex((one) => one.classList.contains("current"));
    const next = (now < 0 && by < 0 ? links.length - 1 : now + by + links.length) % links.length;
    links.forEach((one, i) => one.classList.toggle("current", i === next));
    links[next].click();
    return true;
  }

  function hover(timeline, event) {
    const { x, y } = place(timeline, event);
    timeline.pointer = x;
    const row = rowAt(timeline, y);
    const over = row && x < timeline.label ? row.key : "";
    if (over !== timeline.over) {
      timeline.over = over;
      timeline.draw();
    }
    const lines = event.buttons ? null : told(timeline, row, x, y);
    const tip = timeline.tip;
    tip.classList.toggle("shown", Boolean(lines));
    timeline.canvas.style.cursor = lines || x < timeline.label ? "pointer" : "default";
    if (!lines) return;
    tip.replaceChildren(...lines.map((text) => {
      const line = document.createElement("div");
      line.textContent = text;
      return line;
    }));
    const box = timeline.root.getBoundingClientRect();
    const at = Math.min(event.clientX - box.left + 14, box.width - tip.offsetWidth - 4);
    tip.style.left = `${Math.max(at, 0)}px`;
    tip.style.top = `${event.clientY - box.top + 18}px`;
  }

  function focus(timeline, focused) {
    timeline.focused = focused;
    if (focused && !timeline.cursor && timeline.layout.length) timeline.cursor = timeline.layout[0].key;
    timeline.draw();
  }

  const inField = (event) => event.target.closest && event.target.closest("input, textarea, select, [contenteditable], [role=grid]");

  // Keys that work wherever the focus is, except in fields.
  function anywhere(timeline, event) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || inField(event)) return;
    if (!timeline.root.isConnected) return;
    const by = event.shiftKey ? -1 : 1;
    const act = {
      w: () => timeline.zoom(1 / 1.5, timeline.pointed()), s: () => timeline.zoom(1.5, timeline.pointed()), a: () => timeline.pan(-0.25), d: () => timeline.pan(0.25),
      f: () => timeline.fit(), m: () => timeline.marked(), r: () => timeline.ranged(),
      ",": () => timeline.next(-1), ".": () => timeline.next(1), 0: () => timeline.show(...timeline.setup.bounds),
      "/": () => (document.querySelector("#timeline-search") || timeline.scroller).focus(), Escape: () => timeline.clear(),
      g: () => space.jump(timeline, "gap", by), l: () => space.jump(timeline, "late", by), t: () => space.jump(timeline, "step", by), q: () => space.jump(timeline, "row", by), n: () => found(by),
      c: () => space.follow(timeline), e: () => space.ruler(timeline, event.shiftKey ? "end" : "start"), k: () => space.criticalPath(timeline, true), "?": () => toggleKeys(),
    }[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  function toggleKeys() {
    const keys = document.querySelector("details.timeline-keys");
    if (keys) keys.open = !keys.open;
  }

  // Keys of the rows, when the timeline has the focus.
  function key(timeline, event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const place_ = Math.max(timeline.layout.findIndex((one) => one.key === timeline.cursor), 0);
    const row = timeline.layout[place_];
    const act = {
      ArrowDown: () => step(timeline, place_ + 1), ArrowUp: () => step(timeline, place_ - 1),
      Home: () => step(timeline, 0), End: () => step(timeline, timeline.layout.length - 1),
      ArrowRight: () => timeline.next(1), ArrowLeft: () => timeline.next(-1),
      Enter: () => row && row.node && timeline.toggle(row.node), " ": () => row && row.node && timeline.toggle(row.node),
      p: () => row && row.track >= 0 && timeline.pin(row.track),
    }[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  function step(timeline, to) {
    const place_ = Math.max(0, Math.min(to, timeline.layout.length - 1));
    const row = timeline.layout[place_];
    timeline.cursor = row.key;
    const top = place_ * space.ROW;
    const view = timeline.height - timeline.pinnedHeight();
    if (top < timeline.scroll) timeline.scroller.scrollTop = top;
    else if (top + space.ROW > timeline.scroll + view) timeline.scroller.scrollTop = top + space.ROW - view;
    const state = row.node && (row.node.children.length || row.node.rows.length > 1) ? (timeline.isOpen(row.node) ? ", open" : ", closed") : "";
    timeline.say(`${row.text || "nested events"}${state}`);
    timeline.draw();
  }

  // Buttons of the page name what they do in `data-act`.
  function button(timeline, event) {
    const target = event.target.closest && event.target.closest("[data-act]");
    if (!target || !timeline.root.isConnected) return;
    const act = {
      in: () => timeline.zoom(0.5), out: () => timeline.zoom(2), left: () => timeline.pan(-0.5), right: () => timeline.pan(0.5),
      all: () => timeline.show(...timeline.setup.bounds), steady: () => timeline.show(...timeline.setup.window), fit: () => timeline.fit(),
      close: () => timeline.clear(), follow: () => space.follow(timeline), path: () => space.criticalPath(timeline, true),
      ...Object.fromEntries(["row", ...Object.keys(timeline.setup.jumps)].map((kind) => [kind, () => space.jump(timeline, kind, 1)])),
      colour: () => {
        timeline.byName = !timeline.byName;
        timeline.recolour();
        target.setAttribute("aria-pressed", String(timeline.byName));
        timeline.change(false);
      },
      export: () => {
        const query = new URLSearchParams(window.location.search);
        const kept = new URLSearchParams({ from: timeline.absolute(timeline.from), to: timeline.absolute(timeline.to) });
        if (query.get("ranks")) kept.set("ranks", query.get("ranks"));
        window.location.assign(`${target.dataset.href}?${kept}`);
      },
    }[target.dataset.act];
    if (act) act();
  }

  space.listen = listen;
})();
