// The timeline: what it shows (window, rows, selection), kept in the address, and drawn when it changes.
(() => {
  const space = window.gpuscopeTimeline = window.gpuscopeTimeline || {};
  const KEPT = ["from", "to", "event", "mark", "range", "pin", "tree", "colour", "find", "path"];
  const BEYOND = 240; // pixels above and below the screen whose rows are fetched too

  // What of the address is not the timeline's own.
  function others() {
    const query = new URLSearchParams(window.location.search);
    KEPT.forEach((key) => query.delete(key));
    return `${window.location.pathname}?${query}`;
  }

  // The tracks that rows show, once each: their own, and of a closed rank a second stream.
  space.drawn = (rows) => [...new Set(rows.flatMap((one) => [one.track, one.beside ?? -1]))].filter((track) => track >= 0);

  class Timeline {
    constructor(root, setup) {
      Object.assign(this, { root, setup, flows: setup.flows, focused: false, cursor: "", over: "", scroll: 0, height: 300 });
      this.base = BigInt(setup.base);
      this.others = others();
      this.build();
      this.tiles = new space.Tiles(setup.url, (error) => this.arrived(error));
      this.painting = 0;
      this.dead = new AbortController();
      this.read(true);
      space.listen(this);
      this.resize();
      this.reveal();
    }

    build() {
      const make = (kind, name, attributes = {}) => {
        const made = document.createElement(kind);
        made.className = name;
        Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
        return made;
      };
      this.root.replaceChildren();
      this.map = make("canvas", "timeline-map", { "aria-hidden": "true" });
      this.axis = make("canvas", "timeline-axis", { "aria-hidden": "true" });
      this.scroller = make("div", "timeline-scroll", {
        id: "timeline-rows", tabindex: "0", role: "application", "aria-label": "Timeline", "aria-describedby": "timeline-keys timeline-said",
      });
      this.canvas = make("canvas", "timeline-canvas", { "aria-hidden": "true" });
      this.room = make("div", "timeline-room");
      this.tip = make("div", "timeline-tip", { "aria-hidden": "true" });
      this.said = make("div", "timeline-said", { id: "timeline-said", "aria-live": "polite" });
      this.buffer = document.createElement("canvas");
      this.scroller.append(this.canvas, this.room);
      this.root.append(this.map, this.axis, this.scroller, this.said, this.tip);
    }

    // --- the address ---

    absolute(at) {
      return String(this.base + BigInt(Math.round(at)));
    }

    relative(text) {
      try {
        return Number(BigInt(text) - this.base);
      } catch {
        return null;
      }
    }

    span(text) {
      const [from, to] = (text || "").split(":").map((one) => (one ? this.relative(one) : null));
      return from !== null && to !== undefined && to !== null && to >= from ? [from, to] : null;
    }

    // What the address says; at first, and when it was changed by a link or by going back.
    read(first = false) {
      const query = new URLSearchParams(window.location.search);
      const window_ = query.has("from") && query.has("to") ? this.span(`${query.get("from")}:${query.get("to")}`) : null;
      [this.from, this.to] = window_ && window_[1] > window_[0] ? window_ : this.setup.window;
      this.mark = this.span(query.get("mark"));
      this.range = this.span(query.get("range"));
      this.pins = (query.get("pin") || "").split(",").filter(Boolean).map(Number).filter((one) => one in this.setup.tracks);
      this.toggled = new Set((query.get("tree") || "").split(",").filter(Boolean));
      this.byName = query.get("colour") === "name";
      this.search = (query.get("find") || "").trim().toLowerCase();
      this.recolour();
      if (Boolean(this.path) !== (query.get("path") === "1")) space.criticalPath(this);
      const event = query.get("event") || "";
      if (!event) this.selected = this.flows = null;
      else if (first && this.setup.flows) this.selected = this.setup.flows.event;
      else if (!this.selected || this.selected.ref !== event) this.ask(event);
      if (!first) {
        if (this.range) this.askRange();
        this.resize();
      }
    }

    // Into the address: `push` makes a step that Back undoes.
    write(push) {
      if (others() !== this.others) return; // another page is on its way
      const query = new URLSearchParams(window.location.search);
      const put = (key, value) => (value ? query.set(key, value) : query.delete(key));
      put("from", this.absolute(this.from));
      put("to", this.absolute(this.to));
      put("event", this.selected ? this.selected.ref : "");
      for (const key of ["mark", "range"]) put(key, this[key] ? this[key].map((at) => this.absolute(at)).join(":") : "");
      put("pin", this.pins.join(","));
      put("tree", [...this.toggled].join(","));
      put("colour", this.byName ? "name" : "");
      put("path", this.path ? "1" : "");
      put("find", this.search ? query.get("find") || this.search : "");
      const text = `?${query.toString().replace(/%3A/g, ":").replace(/%2C/g, ",")}`;
      if (text === window.location.search) return;
      window.history[push ? "pushState" : "replaceState"](window.history.state, "", window.location.pathname + text);
      this.tell("query", { data: text });
    }

    tell(id, props) {
      if (window.dash_clientside && window.dash_clientside.set_props) window.dash_clientside.set_props(id, props);
    }

    // --- rows ---

    isOpen(node) {
      return node.open !== this.toggled.has(node.id);
    }

    rows() {
      const found = [];
      const every = (node) => [...node.rows, ...node.children.flatMap(every)];
      const visit = (node, level) => {
        const isOpen = this.isOpen(node);
        if (node.rows.length) {
          const holds = isOpen ? null : new Set(every(node));
          found.push({ key: node.id, node, level, text: node.label, track: node.rows[0], holds });
          if (isOpen) node.rows.slice(1).forEach((track, i) => found.push({ key: `${node.id}.${i + 1}`, node: null, level, text: "", track }));
          return;
        }
        found.push({
          key: node.id, node, level, text: node.label, track: isOpen ? -1 : node.summary, beside: isOpen ? -1 : node.beside,
          holds: isOpen ? null : new Set(every(node)),
        });
        if (isOpen) node.children.forEach((child) => visit(child, level + 1));
      };
      this.setup.tree.forEach((node) => visit(node, 0));
      return found;
    }

    pinnedHeight() {
      return this.pins.length ? this.pins.length * space.ROW + 3 : 0;
    }

    // The rows on the screen, with their places: pinned ones first, then those scrolled to.
    shownRows(margin = 0) {
      const pinned = this.pins.map((track, place) => {
        const own = this.setup.tracks[track];
        return { key: `pin${track}`, node: null, level: 0, text: `rank ${own.rank} · ${own.label}`, track, top: place * space.ROW, pinned: true };
      });
      const above = this.pinnedHeight();
      const all = this.layout.map((one, place) => ({ ...one, top: above + place * space.ROW - this.scroll }));
      return [...pinned, ...all.filter((one) => one.top > above - space.ROW - margin && one.top < this.height + margin)];
    }

    toggle(node) {
      if (this.toggled.has(node.id)) this.toggled.delete(node.id);
      else this.toggled.add(node.id);
      this.change(false);
    }

    pin(track) {
      this.pins = this.pins.includes(track) ? this.pins.filter((one) => one !== track) : [...this.pins, track].slice(-12);
      this.change(false);
    }

    // Open the nodes around a track and scroll to it.
    reveal() {
      if (!this.selected) return;
      const track = this.selected.track;
      const open = (node) => {
        const inside = node.rows.includes(track) || node.children.map(open).some(Boolean);
        if (inside && !this.isOpen(node) && (node.rows[0] !== track || node.rows.length > 1)) {
          if (node.rows[0] !== track) this.toggled.has(node.id) ? this.toggled.delete(node.id) : this.toggled.add(node.id);
        }
        return inside;
      };
      this.setup.tree.forEach(open);
      this.layout = this.rows();
      const place = this.layout.findIndex((one) => one.track === track && !(one.node && !one.node.rows.length));
      if (place < 0) return;
      this.cursor = this.layout[place].key;
      this.resize();
      const top = place * space.ROW;
      if (top < this.scroll || top + space.ROW > this.scroll + this.height - this.pinnedHeight()) this.bring(top);
    }

    // Scroll to a row: not at all where it is in sight from the top. Done again when the height changes, as it does while
    // the page is laid out, unless one has scrolled since.
    bring(top) {
      const view = this.height - this.pinnedHeight();
      this.scroller.scrollTop = top + space.ROW <= view ? 0 : Math.max(0, top - view / 3);
      this.scroll = this.scroller.scrollTop;
      this.brought = { top, height: this.height, at: this.scroll };
    }

    // --- the window ---

    x(at) {
      return this.label + ((at - this.from) / (this.to - this.from)) * this.plot;
    }

    time(x) {
      return this.from + ((x - this.label) / this.plot) * (this.to - this.from);
    }

    // Show [from, to); `push`: in the end a step that Back undoes.
    show(from, to) {
      const [low, high] = this.setup.bounds;
      const room = high - low;
      let width = Math.max(Math.min(to - from, 3 * room), 20);
      const middle = Math.max(low, Math.min((from + to) / 2, high));
      [this.from, this.to] = [middle - width / 2, middle + width / 2];
      this.moved = true;
      clearTimeout(this.settling);
      this.settling = setTimeout(() => this.settle(), 350);
      this.draw();
      this.fetch();
    }

    settle() {
      if (!this.moved || !this.root.isConnected) return;
      this.moved = false;
      this.write(true);
    }

    // The time under the pointer, else the middle: what keys zoom around.
    pointed() {
      const over = this.pointer !== null && this.pointer !== undefined && this.pointer > this.label;
      return over ? this.time(this.pointer) : (this.from + this.to) / 2;
    }

    zoom(factor, at = (this.from + this.to) / 2) {
      this.show(at - (at - this.from) * factor, at + (this.to - at) * factor);
    }

    pan(share) {
      const by = share * (this.to - this.from);
      this.show(this.from + by, this.to + by);
    }

    fit() {
      const span = this.range || (this.selected && [this.selected.start, this.selected.end]) || this.mark;
      if (!span) return this.show(...this.setup.bounds);
      const room = Math.max((span[1] - span[0]) * 0.4, 100);
      return this.show(span[0] - room, span[1] + room);
    }

    // --- drawing ---

    recolour() {
      this.colours = space.colours(this);
      this.draw();
    }

    resize() {
      const width = this.scroller.clientWidth; // without its scroll bar
      if (!width) return;
      this.label = width < 620 ? 118 : 180;
      this.plot = Math.max(width - this.label - 1, 50);
      this.layout = this.rows();
      const total = this.layout.length * space.ROW + this.pinnedHeight();
      const below = 66 + (document.querySelector(".timeline-legend")?.offsetHeight || 18);
      const most = Math.max(240, window.innerHeight - this.scroller.getBoundingClientRect().top - window.scrollY - below);
      this.height = Math.max(Math.min(total, most), 120);
      this.scroller.style.height = `${this.height}px`;
      this.room.style.height = `${Math.max(total - this.height, 0)}px`;
      this.scroll = this.scroller.scrollTop;
      const { brought } = this;
      if (brought && brought.height !== this.height && brought.at === this.scroll) this.bring(brought.top);
      this.draw();
      this.fetch();
    }

    // Something other than the window has changed.
    change(push) {
      this.layout = this.rows();
      this.write(push);
      this.resize();
    }

    draw() {
      if (this.painting) return;
      this.painting = requestAnimationFrame(() => {
        this.painting = 0;
        if (!this.root.isConnected) return this.dead.abort();
        if (!this.layout) return undefined; // not yet on the screen
        space.paintMap(this);
        space.paintAxis(this);
        space.paintRows(this);
        this.root.dataset.painted = String(Number(this.root.dataset.painted || 0) + 1);
        return undefined;
      });
    }

    fetch() {
      const ratio = window.devicePixelRatio || 1;
      const level = space.Tiles.level((this.to - this.from) / Math.round(this.plot * ratio));
      // Some rows beyond the screen too: what is scrolled to is there at once.
      this.tiles.want(space.drawn(this.shownRows(BEYOND)), level, this.from, this.to);
    }

    // Whether all that is on the screen is here at its own level of detail.
    complete() {
      const ratio = window.devicePixelRatio || 1;
      const level = space.Tiles.level((this.to - this.from) / Math.round(this.plot * ratio));
      const [first, last] = space.Tiles.range(level, this.from, this.to);
      return space.drawn(this.shownRows()).every((track) => {
        for (let tile = first; tile < last; tile++) if (!this.tiles.find(track, level, tile)) return false;
        return true;
      });
    }

    arrived(error) {
      this.root.dataset.failed = error ? String(error.message || error) : "";
      if (error) this.say("The server does not answer: is `gpuscope dashboard` still running?");
      this.draw();
      queueMicrotask(() => this.fetch());
    }

    say(text) {
      this.said.textContent = text;
    }

    // The events of a track that have a mark of their own, once each, at the detail shown.
    visible(track, visit) {
      const ratio = window.devicePixelRatio || 1;
      const nsPerPixel = (this.to - this.from) / Math.round(this.plot * ratio);
      const least = 3 * nsPerPixel;
      const seen = new Set();
      for (const [chunk, from, to] of this.tiles.pieces(track, space.Tiles.level(nsPerPixel), this.from, this.to)) {
        const [low, high] = [Math.max(from, this.from), Math.min(to, this.to)];
        for (let i = space.above(chunk.reach, low); i < chunk.start.length && chunk.start[i] < high; i++) {
          if (chunk.end[i] <= low || chunk.end[i] - chunk.start[i] < least || seen.has(chunk.row[i])) continue;
          seen.add(chunk.row[i]);
          visit({ start: chunk.start[i], end: chunk.end[i], row: chunk.row[i], name: chunk.name[i], look: chunk.look[i] });
        }
      }
    }

    // What is at a place of a row: an event, or a pixel's worth of them.
    at(track, x) {
      const ratio = window.devicePixelRatio || 1;
      const nsPerPixel = (this.to - this.from) / Math.round(this.plot * ratio);
      const slack = 2 * ratio * nsPerPixel;
      const time = this.time(x);
      let best = null;
      let cells = null;
      for (const [chunk, from, to] of this.tiles.pieces(track, space.Tiles.level(nsPerPixel), time - slack, time + slack)) {
        for (let i = space.above(chunk.reach, time - slack); i < chunk.start.length && chunk.start[i] < time + slack; i++) {
          const off = Math.max(chunk.start[i] - time, time - chunk.end[i], 0);
          if (off <= slack && (!best || off < best.off || (off === best.off && chunk.end[i] - chunk.start[i] < best.end - best.start))) {
            best = { off, start: chunk.start[i], end: chunk.end[i], row: chunk.row[i], name: chunk.name[i], look: chunk.look[i] };
          }
        }
        const width = 2 ** chunk.level;
        const zero = chunk.first * space.TILE * width;
        for (let i = space.above(chunk.at, (time - nsPerPixel - zero) / width - 1); i < chunk.at.length; i++) {
          const start = zero + chunk.at[i] * width;
          if (start >= Math.min(time + nsPerPixel, to) || start + width <= from) break;
          cells = cells || { count: 0, busy: 0, width: 0, most: 0 };
          cells.count += chunk.count[i];
          cells.busy += (chunk.busy[i] / 65535) * width;
          cells.width += width;
          if (chunk.busy[i] >= cells.most) {
            Object.assign(cells, { most: chunk.busy[i], row: chunk.cellRow[i], name: chunk.cellName[i], look: chunk.cellLook[i], start, end: start + width });
          }
        }
      }
      if (best && (best.off === 0 || !cells)) return { event: best };
      return cells ? { cells } : best ? { event: best } : null;
    }

    // What a row of a counter stands for: its label, unit and top; null for a row of events.
    counter(track) {
      const own = this.setup.tracks[track];
      return own && own.table === "c" ? own : null;
    }

    // --- selection ---

    ref(track, row) {
      return `${this.setup.tracks[track].table}${row}`;
    }

    select(track, event) {
      if (this.counter(track)) return undefined;
      const ref = this.ref(track, event.row);
      if (ref[0] === "s") return this.show(event.start, event.end);
      this.selected = { ref, track, start: event.start, end: event.end };
      this.range = null;
      return this.ask(ref);
    }

    ask(ref) {
      this.open("event");
      this.tell("timeline-event", { data: ref });
      if (this.selected && this.selected.ref === ref) this.change(false);
    }

    // The server's answer to `ask`: where the event is drawn, and what it is connected to.
    answer(flows) {
      if (!flows) return;
      this.flows = flows;
      this.selected = flows.event;
      this.say(this.why ? `${this.why}: ${flows.said}` : flows.said);
      this.why = "";
      this.reveal();
      this.change(false);
    }

    choose(range) {
      this.range = range && range[1] > range[0] ? range : null;
      this.change(false);
      if (this.range) this.askRange();
      else this.open(this.selected ? "event" : "");
    }

    askRange() {
      this.open("range");
      this.tell("timeline-range", { data: this.range.map((at) => this.absolute(at)).join(":") });
    }

    clear() {
      this.selected = this.flows = this.range = this.mark = null;
      this.open("");
      this.change(false);
    }

    // The selected event as a range, on all rows.
    ranged() {
      if (this.selected) this.choose([this.selected.start, this.selected.end]);
    }

    marked() {
      const span = this.range || (this.selected && [this.selected.start, this.selected.end]);
      const same = span && this.mark && span[0] === this.mark[0] && span[1] === this.mark[1];
      this.mark = same || !span ? null : span;
      this.change(false);
    }

    open(what) {
      const drawer = document.getElementById("timeline-drawer");
      if (!drawer) return;
      drawer.dataset.show = what;
      this.tip.classList.remove("shown"); // rows and columns move
      const wide = this.root.clientWidth;
      requestAnimationFrame(() => this.root.clientWidth !== wide && this.resize());
    }

    // The neighbour of the selected event in the row of the cursor.
    async next(by) {
      const row = this.layout.find((one) => one.key === this.cursor);
      const track = row ? (row.track >= 0 ? row.track : row.node.summary) : this.selected && this.selected.track;
      if (track === undefined || track === null || this.counter(track)) return;
      const from = this.selected && this.selected.track === track ? `&row=${this.selected.ref.slice(1)}` : `&at=${Math.round(this.from)}`;
      const answer = await fetch(`${this.setup.url}/next?track=${track}&by=${by}${from}`);
      if (!answer.ok) return;
      const found = await answer.json();
      if (!found) return;
      const width = this.to - this.from;
      if (found.start < this.from || found.end > this.to) {
        const middle = (found.start + Math.min(found.end, found.start + width / 2)) / 2;
        this.show(middle - width / 2, middle + width / 2);
      }
      this.select(track, found);
    }

    find(text) {
      this.search = (text || "").trim().toLowerCase();
      this.recolour();
      this.open(this.search ? "find" : this.selected ? "event" : "");
      this.change(false);
    }

    // --- for tests: ns painted in each row on the screen, and the window they are of ---

    painted() {
      const ratio = window.devicePixelRatio || 1;
      const shown = this.shownRows();
      const { image, width, nsPerPixel } = space.raster(this, shown, ratio);
      return {
        from: this.absolute(this.from), to: this.absolute(this.to), nsPerPixel,
        rows: shown.map((one, place) => {
          let sum = 0;
          for (let x = 0; x < width; x++) sum += image.data[4 * (2 * place * width + x) + 3];
          return { track: one.track, ns: (sum / 255) * nsPerPixel };
        }),
      };
    }
  }

  // Called by Dash when the page is drawn.
  function mount(setup) {
    const root = document.getElementById("timeline");
    if (!root || !setup) return null;
    if (space.current) space.current.dead.abort();
    space.current = new Timeline(root, setup);
    window.gpuscopeTimeline.current = space.current;
    return space.current;
  }

  Object.assign(space, { Timeline, mount, others, KEPT });
})();
