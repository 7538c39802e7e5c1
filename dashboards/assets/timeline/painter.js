// Draws a timeline's state on its canvases: rows, axis, mini-map.
(() => {
  const space = window.gpuscopeTimeline = window.gpuscopeTimeline || {};
  const ROW = 20;
  const AXIS = 26;
  const MAP = 34;
  const FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
  const [INDENT, LEVEL, SIGN] = [8, 12, 13]; // pixels before a label: of all, by level, and of ▸
  const PIN = 34; // pixels at the right of a label under the pointer: a click there pins its row
  const CHARACTER = 6.1; // pixels of one, on average
  const THEMES = {
    light: { text: "#1a1a1a", faint: "#5c5c5c", line: "#d9d9d9", back: "#ffffff", head: "#eef0f2", select: "#000000", cursor: "#00527f", counter: "#007a5a" },
    dark: { text: "#ececec", faint: "#b0b0b0", line: "#3f3f3f", back: "#1b1b1d", head: "#2a2b2e", select: "#ffffff", cursor: "#8fd0f5", counter: "#3fc79a" },
  };
  const PALE = 0.75; // how much of the ground is in the colour of what a search does not find
  const ROLES = { setup: 0.1, partial: 0.1, warmup: 0.1, before_shift: 0.1, outlier: 0.1, steady: 0 };

  const dark = () => document.documentElement.dataset.mantineColorScheme === "dark";
  const theme = () => THEMES[dark() ? "dark" : "light"];

  function sized(canvas, width, height) {
    const ratio = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = FONT;
    pen.textBaseline = "middle";
    return pen;
  }

  // Colours of looks and names, computed once each; pale where a search does not find the name.
  function colours(timeline) {
    const known = new Map();
    const back = theme().back;
    return (look, name) => {
      const key = look * 4294967296 + name;
      let found = known.get(key);
      if (found === undefined) {
        const own = space.coloured((timeline.setup.looks[look] || { colour: timeline.setup.marks.other }).colour, name, timeline.byName);
        const missed = timeline.search && !(timeline.tiles.names.get(name) || "").toLowerCase().includes(timeline.search);
        const hex = missed ? space.mixed(own, back, PALE) : own;
        // Black on what is light, white on what is dark: either has a contrast of 4.5 and more at this luminance.
        known.set(key, (found = { packed: space.packed(hex), ink: luminance(hex) > 0.18 ? "#000000" : "#ffffff" }));
      }
      return found;
    };
  }

  function luminance(hex) {
    const [r, g, b] = hex.match(/[0-9a-f]{2}/gi).map((two) => (parseInt(two, 16) / 255) ** 2.2);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  }

  // A row's pixels as alpha (0..255), for the image and for tests.
  function raster(timeline, shown, ratio) {
    const width = Math.max(1, Math.round(timeline.plot * ratio));
    const nsPerPixel = (timeline.to - timeline.from) / width;
    const image = new ImageData(width, Math.max(1, 2 * shown.length));
    const pixels = new Uint32Array(image.data.buffer);
    const row = new space.Row(width);
    const colour = timeline.colours;
    const level = space.Tiles.level(nsPerPixel);
    const curves = new Map(); // of counters, by place: mean and largest value of each pixel, as a share of the top
    shown.forEach((one, place) => {
      const track = one.track;
      if (track < 0) return;
      if (timeline.counter(track)) {
        curves.set(place, space.curve(timeline.tiles.pieces(track, level, timeline.from, timeline.to), timeline.from, nsPerPixel, width));
        return;
      }
      row.clear();
      for (const [chunk, from, to] of timeline.tiles.pieces(track, level, timeline.from, timeline.to)) {
        row.chunk(chunk, from, to, timeline.from, nsPerPixel, (look, name) => colour(look, name).packed);
      }
      row.paint(pixels, 2 * place * width, (2 * place + 1) * width);
    });
    return { image, width, nsPerPixel, level, curves };
  }

  function paintRows(timeline) {
    const { canvas, plot, label } = timeline;
    const height = timeline.height;
    const pen = sized(canvas, label + plot, height);
    const look = theme();
    const ratio = window.devicePixelRatio || 1;
    const shown = timeline.shownRows();
    stripes(timeline, pen, shown, look);
    steps(timeline, pen, look, 0, height);
    spans(timeline, pen, look, height);
    space.paintFound(timeline, pen, shown);
    const below = shown.filter((one) => one.beside >= 0).map((one) => ({ ...one, track: one.beside, low: true }));
    const drawn = [...shown, ...below];
    const { image, width, curves } = raster(timeline, drawn, ratio);
    timeline.buffer.width = width;
    timeline.buffer.height = image.height;
    timeline.buffer.getContext("2d").putImageData(image, 0, 0);
    pen.imageSmoothingEnabled = false;
    drawn.forEach((one, place) => {
      if (one.track < 0) return;
      const inset = one.beside >= 0 ? 3 : one.node && !one.node.rows.length ? 5 : 2; // a closed node's summary is thinner
      const tall = (ROW - 2 * inset) / (one.beside >= 0 ? 2 : 1); // two streams share the height
      const top = one.top + inset + (one.low ? tall : 0);
      pen.save();
      clip(timeline, pen, one, height);
      pen.globalAlpha = 1;
      if (curves.has(place)) {
        curve(timeline, pen, one, curves.get(place), width, look);
        pen.restore();
        return;
      }
      pen.drawImage(timeline.buffer, 0, 2 * place, width, 1, label, top, plot, tall);
      pen.drawImage(timeline.buffer, 0, 2 * place + 1, width, 1, label, top + tall - 2, plot, 2);
      events(timeline, pen, one, top, tall, look);
      pen.restore();
    });
    space.paintPath(timeline, pen, shown);
    space.paintFlows(timeline, pen, shown, look);
    names(timeline, pen, shown, look, height);
  }

  // A counter: its mean solid, the largest samples of a pixel faint above it.
  function curve(timeline, pen, one, { mean, most }, width, look) {
    const each = timeline.plot / width;
    const bottom = one.top + ROW - 1;
    pen.fillStyle = look.counter;
    for (const [values, alpha] of [[most, 0.35], [mean, 1]]) {
      pen.globalAlpha = alpha;
      for (let x = 0; x < width; x++) {
        const tall = values[x] * (ROW - 3);
        if (tall > 0) pen.fillRect(timeline.label + x * each, bottom - tall, each + 0.2, tall);
      }
    }
    pen.globalAlpha = 1;
    pen.fillStyle = look.line;
    pen.fillRect(timeline.label, bottom, timeline.plot, 1);
  }

  function clip(timeline, pen, one, height) {
    const top = one.pinned ? 0 : timeline.pinnedHeight();
    pen.beginPath();
    pen.rect(timeline.label, top, timeline.plot, height - top);
    pen.clip();
  }

  function stripes(timeline, pen, shown, look) {
    for (const one of shown) {
      if (one.node && !one.node.rows.length) {
        pen.fillStyle = look.head;
        pen.fillRect(0, one.top, timeline.label + timeline.plot, ROW);
      }
    }
  }

  function steps(timeline, pen, look, top, height) {
    for (const step of timeline.setup.steps) {
      const [x, until] = [timeline.x(step.start), timeline.x(step.end)];
      if (until < timeline.label || x > timeline.label + timeline.plot) continue;
      const low = Math.max(x, timeline.label);
      if (ROLES[step.role]) {
        pen.fillStyle = look.faint;
        pen.globalAlpha = ROLES[step.role];
        pen.fillRect(low, top, Math.min(until, timeline.label + timeline.plot) - low, height);
        pen.globalAlpha = 1;
      }
      if (x < timeline.label || until - x < 4) continue;
      pen.fillStyle = look.line;
      pen.fillRect(Math.round(x), top, 1, height);
    }
  }

  // The marked span and the chosen range, over all rows.
  function spans(timeline, pen, look, height) {
    for (const [span, colour, alpha] of [[timeline.mark, timeline.setup.marks.finding, 0.16], [timeline.range, timeline.setup.marks[dark() ? "range_dark" : "range"], 0.18]]) {
      if (!span) continue;
      const [x, until] = [Math.max(timeline.x(span[0]), timeline.label), Math.min(timeline.x(span[1]), timeline.label + timeline.plot)];
      if (until < timeline.label || x > timeline.label + timeline.plot) continue;
      pen.fillStyle = colour;
      pen.globalAlpha = alpha;
      pen.fillRect(x, 0, Math.max(until - x, 1), height);
      pen.globalAlpha = 1;
      pen.fillRect(x, 0, 1, height);
      pen.fillRect(until, 0, 1, height);
    }
    ruler(timeline, pen, look, height);
  }

  // How long the range is, between its edges where there is room, else beside it.
  function ruler(timeline, pen, look, height) {
    if (!timeline.range) return;
    const [x, until] = timeline.range.map((at) => timeline.x(at));
    const text = space.duration(timeline.range[1] - timeline.range[0]);
    const wide = text.length * CHARACTER + 8;
    const at = until - x > wide + 16 ? (Math.max(x, timeline.label) + Math.min(until, timeline.label + timeline.plot) - wide) / 2 : until + 4;
    pen.fillStyle = look.back;
    pen.fillRect(at, height - 18, wide, 16);
    pen.fillStyle = look.text;
    pen.fillText(text, at + 4, height - 10);
  }

  // What is wide enough to have an edge and a name, and the selected event's outline.
  function events(timeline, pen, one, top, tall, look) {
    const found = [];
    timeline.visible(one.track, (event) => found.push(event));
    found.forEach((event, place) => {
      const [x, until] = [Math.max(timeline.x(event.start), timeline.label), Math.min(timeline.x(event.end), timeline.label + timeline.plot)];
      const width = until - x;
      if (width >= 5) {
        pen.fillStyle = look.back;
        pen.globalAlpha = 0.45;
        pen.fillRect(x, top, 1, tall); // an edge, so that neighbours of one colour are two
        pen.globalAlpha = 1;
      }
      const next = found[place + 1]; // where it begins before this one ends, the label ends there too
      const free = Math.min(until, next ? Math.max(timeline.x(next.start), x) : until) - x;
      if (free >= 28 && tall > 10) {
        const name = timeline.tiles.label(event.name);
        const room = Math.floor((free - 6) / CHARACTER);
        pen.fillStyle = timeline.colours(event.look, event.name).ink;
        pen.fillText(name.length <= room ? name : `${name.slice(0, Math.max(room - 1, 1))}…`, x + 3, top + tall / 2 + 0.5, free - 5);
      }
    });
    const picked = timeline.selected;
    if (picked && picked.track === one.track) {
      const x = Math.max(timeline.x(picked.start), timeline.label - 2);
      const until = Math.min(timeline.x(picked.end), timeline.label + timeline.plot + 2);
      if (until >= timeline.label && x <= timeline.label + timeline.plot) {
        pen.strokeStyle = look.select;
        pen.lineWidth = 2;
        pen.strokeRect(x, top - 0.5, Math.max(until - x, 3), tall + 1);
      }
    }
  }

  // Labels of the rows, cut at the column's edge.
  function names(timeline, pen, shown, look, height) {
    const top = timeline.pinnedHeight();
    for (const one of shown) {
      pen.save();
      pen.beginPath();
      pen.rect(0, one.pinned ? 0 : top, timeline.label - 4, height);
      pen.clip();
      pen.fillStyle = one.node && !one.node.rows.length ? look.head : look.back;
      pen.fillRect(0, one.top, timeline.label - 4, ROW);
      if (timeline.cursor === one.key && timeline.focused) {
        pen.fillStyle = look.cursor;
        pen.fillRect(0, one.top, 4, ROW);
      }
      const x = INDENT + LEVEL * one.level;
      pen.fillStyle = look.text;
      if (one.node && (one.node.children.length || one.node.rows.length > 1)) {
        pen.fillText(timeline.isOpen(one.node) ? "▾" : "▸", x, one.top + ROW / 2);
      }
      pen.font = one.level === 0 ? `600 ${FONT}` : FONT;
      const pin = one.track >= 0 && (one.pinned || timeline.over === one.key);
      pen.fillText(fitted(pen, one.text, timeline.label - 8 - x - SIGN - (pin ? PIN : 0)), x + SIGN, one.top + ROW / 2);
      pen.font = FONT;
      if (pin) {
        pen.fillStyle = look.cursor;
        pen.textAlign = "right";
        pen.fillText(one.pinned ? "unpin" : "pin", timeline.label - 8, one.top + ROW / 2);
        pen.textAlign = "left";
      }
      pen.restore();
    }
    if (top) {
      pen.fillStyle = look.faint;
      pen.fillRect(0, top - 2, timeline.label + timeline.plot, 2);
    }
    pen.fillStyle = look.line;
    pen.fillRect(timeline.label - 1, 0, 1, height);
  }

  // As much of a text as fits into some pixels.
  function fitted(pen, text, room) {
    const width = pen.measureText(text).width;
    return width <= room ? text : `${text.slice(0, Math.max(Math.floor((text.length * room) / width) - 1, 1))}…`;
  }

  // Whether a row's label does not fit into its column.
  function cut(timeline, one) {
    const pen = timeline.canvas.getContext("2d");
    pen.font = one.level === 0 ? `600 ${FONT}` : FONT;
    return INDENT + LEVEL * one.level + SIGN + pen.measureText(one.text).width > timeline.label - 8;
  }

  function paintAxis(timeline) {
    const pen = sized(timeline.axis, timeline.label + timeline.plot, AXIS);
    const look = theme();
    steps(timeline, pen, look, 0, AXIS);
    const { found, zero } = space.ticks(timeline.from, timeline.to, Math.max(timeline.plot / 110, 2));
    pen.fillStyle = look.faint;
    for (const [at, text] of found) {
      const x = timeline.x(at);
      if (x < timeline.label) continue;
      pen.fillRect(x, AXIS - 6, 1, 6);
      if (x + 40 < timeline.label + timeline.plot) pen.fillText(text, x + 3, AXIS - 7);
    }
    pen.fillStyle = look.text;
    for (const step of timeline.setup.steps) {
      const x = Math.max(timeline.x(step.start), timeline.label);
      const room = Math.min(timeline.x(step.end), timeline.label + timeline.plot) - x;
      const text = step.step === null ? step.role : step.role === "steady" ? `step ${step.step}` : `step ${step.step} (${step.role})`;
      if (room > text.length * CHARACTER + 6) pen.fillText(text, x + 3, 7);
    }
    pen.fillStyle = look.text;
    pen.fillText(zero ? `${space.offset(zero)} +` : space.duration(timeline.to - timeline.from), 6, AXIS - 8);
    pen.fillStyle = look.line;
    pen.fillRect(0, AXIS - 1, timeline.label + timeline.plot, 1);
  }

  // The whole run; the window is what is not in the shade.
  function paintMap(timeline) {
    const pen = sized(timeline.map, timeline.label + timeline.plot, MAP);
    const look = theme();
    const [low, high] = timeline.setup.bounds;
    const x = (at) => timeline.label + ((at - low) / (high - low)) * timeline.plot;
    pen.fillStyle = look.head;
    pen.fillRect(timeline.label, 0, timeline.plot, MAP - 4);
    const lanes = timeline.setup.overview.length || 1;
    const each = (MAP - 6) / lanes;
    timeline.setup.overview.forEach(({ look: kind, share }, lane) => {
      const width = timeline.plot / share.length;
      pen.fillStyle = (timeline.setup.looks[kind] || { colour: look.faint }).colour;
      share.forEach((one, place) => {
        if (!one) return;
        pen.globalAlpha = 0.15 + 0.85 * one;
        pen.fillRect(timeline.label + place * width, 1 + lane * each, width + 0.3, each - 1);
      });
    });
    pen.globalAlpha = 1;
    const [from, to] = [Math.max(x(timeline.from), timeline.label), Math.min(x(timeline.to), timeline.label + timeline.plot)];
    pen.fillStyle = look.back;
    pen.globalAlpha = 0.6;
    pen.fillRect(timeline.label, 0, Math.max(from - timeline.label, 0), MAP - 4);
    pen.fillRect(to, 0, Math.max(timeline.label + timeline.plot - to, 0), MAP - 4);
    pen.globalAlpha = 1;
    pen.strokeStyle = look.text;
    pen.lineWidth = 1.5;
    pen.strokeRect(from, 0.75, Math.max(to - from, 2), MAP - 5.5);
    pen.fillStyle = look.faint;
    pen.fillText(timeline.setup.whole || "whole run", 6, MAP / 2 - 2);
  }

  Object.assign(space, { ROW, AXIS, MAP, PIN, paintRows, paintAxis, paintMap, raster, colours, theme, cut });
})();
