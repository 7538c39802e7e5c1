// The timeline as a picture: as PNG what is on the screen, as SVG what the same painters draw on a pen that writes it.
(() => {
  const space = window.gpuscopeTimeline = window.gpuscopeTimeline || {};
  const CAPTION = 24;
  const MOST_TRACKS = 400; // as web/timeline_data.py has it
  const STATE = ["fillStyle", "strokeStyle", "globalAlpha", "lineWidth", "font", "textAlign", "dash"];
  const near = (value) => Number(value.toFixed(2));
  const plain = (text) => String(text).replace(/[\u0000-\u001f\ufffe\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "")
    .replace(/[&<>"]/g, (one) => `&#${one.charCodeAt(0)};`);

  // What the painters ask of a canvas's pen, as elements of SVG.
  class Pen {
    constructor() {
      Object.assign(this, { parts: [], held: [], open: 0, clips: 0, path: "", dash: [], textAlign: "left", globalAlpha: 1, lineWidth: 1 });
      this.measure = document.createElement("canvas").getContext("2d");
    }

    save() {
      this.held.push([Object.fromEntries(STATE.map((name) => [name, this[name]])), this.open]);
    }

    restore() {
      const [state, open] = this.held.pop();
      for (; this.open > open; this.open--) this.parts.push("</g>");
      Object.assign(this, state);
    }

    clip() {
      const id = `clip${this.clips++}`;
      this.parts.push(`<clipPath id="${id}"><path d="${this.path}"/></clipPath><g clip-path="url(#${id})">`);
      this.open++;
    }

    setTransform() {}
    clearRect() {}
    closePath() { this.path += "z"; }
    beginPath() { this.path = ""; }
    moveTo(x, y) { this.path += `M${near(x)} ${near(y)}`; }
    lineTo(x, y) { this.path += `L${near(x)} ${near(y)}`; }
    bezierCurveTo(...at) { this.path += `C${at.map(near).join(" ")}`; }
    rect(x, y, width, height) { this.path += `M${near(x)} ${near(y)}h${near(width)}v${near(height)}h${near(-width)}z`; }
    setLineDash(dash) { this.dash = dash; }

    look(kind) {
      const alpha = this.globalAlpha < 1 ? ` opacity="${near(this.globalAlpha)}"` : "";
      if (kind === "fill") return `fill="${this.fillStyle}"${alpha}`;
      return `fill="none" stroke="${this.strokeStyle}" stroke-width="${this.lineWidth}" stroke-dasharray="${this.dash.join(" ") || "none"}"${alpha}`;
    }

    fill() { this.parts.push(`<path d="${this.path}" ${this.look("fill")}/>`); }
    stroke() { this.parts.push(`<path d="${this.path}" ${this.look("stroke")}/>`); }
    box(x, y, width, height, look) {
      if (width > 0 && height > 0) this.parts.push(`<rect x="${near(x)}" y="${near(y)}" width="${near(width)}" height="${near(height)}" ${look}/>`);
    }
    fillRect(x, y, width, height) { this.box(x, y, width, height, this.look("fill")); }
    strokeRect(x, y, width, height) { this.box(x, y, width, height, this.look("stroke")); }

    measureText(text) {
      this.measure.font = this.font;
      return this.measure.measureText(text);
    }

    fillText(text, x, y, room = Infinity) {
      const squeezed = this.measureText(text).width > room ? ` textLength="${near(room)}" lengthAdjust="spacingAndGlyphs"` : "";
      const anchor = { right: "end", center: "middle" }[this.textAlign] || "start";
      const font = plain(this.font).replace(/'/g, "");
      this.parts.push(`<text x="${near(x)}" y="${near(y)}" style="font:${font}" text-anchor="${anchor}"${squeezed} ${this.look("fill")}>${plain(text)}</text>`);
    }

    // One row of pixels, stretched: neighbours of one colour as one box.
    drawImage(image, fromX, fromY, width, height, x, y, toWidth, toHeight) {
      const { data } = image.getContext("2d").getImageData(fromX, fromY, width, 1);
      const pixels = new Uint32Array(data.buffer);
      const each = toWidth / width;
      for (let i = 0, next; i < width; i = next) {
        for (next = i + 1; next < width && pixels[next] === pixels[i];) next++;
        const alpha = data[4 * i + 3];
        if (!alpha) continue;
        const colour = `#${[0, 1, 2].map((part) => data[4 * i + part].toString(16).padStart(2, "0")).join("")}`;
        this.box(x + i * each, y, (next - i) * each, toHeight, `fill="${colour}"${alpha < 255 ? ` fill-opacity="${(alpha / 255).toFixed(3)}"` : ""}`);
      }
    }
  }

  function sections(timeline) {
    return [[timeline.map, space.MAP, "map"], [timeline.axis, space.AXIS, "axis"], [timeline.canvas, timeline.height, "canvas"]];
  }

  const size = (timeline) => [timeline.label + timeline.plot, CAPTION + space.MAP + space.AXIS + timeline.height];

  function caption(timeline, pen) {
    const look = space.theme();
    pen.fillStyle = look.back;
    pen.fillRect(0, 0, ...size(timeline));
    pen.font = "600 12px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
    pen.textBaseline = "middle";
    pen.fillStyle = look.text;
    pen.fillText(`${timeline.setup.title} · ${space.duration(timeline.to - timeline.from)} at ${space.offset(timeline.from)}`, 8, CAPTION / 2);
  }

  function svg(timeline) {
    const [width, height] = size(timeline);
    const whole = new Pen();
    caption(timeline, whole);
    let top = CAPTION;
    const shadow = Object.create(timeline, { over: { value: "" }, focused: { value: false } });
    for (const [, tall, name] of sections(timeline)) {
      whole.parts.push(`<svg x="0" y="${top}" width="${width}" height="${tall}">`);
      Object.defineProperty(shadow, name, { value: { style: {}, getContext: () => whole } });
      ({ map: space.paintMap, axis: space.paintAxis, canvas: space.paintRows })[name](shadow);
      whole.parts.push("</svg>");
      top += tall;
    }
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">`
      + `<style>text { dominant-baseline: central; white-space: pre; }</style>${whole.parts.join("\n")}</svg>`;
  }

  function png(timeline) {
    const [width, height] = size(timeline);
    const ratio = window.devicePixelRatio || 1;
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    caption(timeline, pen);
    let top = CAPTION;
    for (const [own, tall] of sections(timeline)) {
      pen.drawImage(own, 0, top, width, tall);
      top += tall;
    }
    return new Promise((done) => canvas.toBlob(done, "image/png"));
  }

  // Save what is on the screen as `kind`, once all of it is here.
  async function picture(timeline, kind) {
    for (let wait = 0; wait < 100 && !timeline.complete(); wait++) await new Promise((done) => setTimeout(done, 50));
    const blob = kind === "png" ? await png(timeline) : new Blob([svg(timeline)], { type: "image/svg+xml" });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = `timeline.${kind}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    timeline.say(`saved timeline.${kind}`);
  }

  // The address that answers with the view as one file.
  function share(timeline, href) {
    const own = new URLSearchParams(window.location.search);
    const asked = new URLSearchParams({ from: timeline.absolute(timeline.from), to: timeline.absolute(timeline.to) });
    for (const key of ["ranks", "event", "mark", "range", "pin", "tree", "colour"]) if (own.get(key)) asked.set(key, own.get(key));
    const rows = [...timeline.shownRows(), ...timeline.layout]; // those on the screen first, where they are too many
    asked.set("tracks", space.ranges(space.drawn(rows).slice(0, MOST_TRACKS)));
    asked.set("theme", document.documentElement.dataset.mantineColorScheme || "light");
    return `${href}?${asked}`;
  }

  document.addEventListener("click", (event) => {
    const target = event.target.closest && event.target.closest("[data-picture]");
    const timeline = space.current;
    if (!target || !timeline || !timeline.root.isConnected) return;
    if (target.dataset.picture === "html") window.location.assign(share(timeline, target.dataset.href));
    else picture(timeline, target.dataset.picture);
  });

  Object.assign(space, { svg, png, picture, share });
})();
