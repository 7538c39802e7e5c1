// A row of the timeline as pixels: each is as opaque as it is busy, so that what is painted is the time that was spent.
(() => {
  const space = window.gpuscopeTimeline = window.gpuscopeTimeline || {};

  // How much of each pixel is covered, and by what for the most part. One row at a time; buffers are used again.
  class Row {
    constructor(width) {
      this.width = width;
      this.cover = new Float32Array(width);
      this.colour = new Uint32Array(width);
      this.most = new Float32Array(width);
    }

    clear() {
      this.cover.fill(0);
      this.most.fill(0);
    }

    // [x0, x1) in pixels, covered to the share `density`.
    add(x0, x1, density, colour) {
      const [low, high] = [Math.max(x0, 0), Math.min(x1, this.width)];
      if (!(high > low)) return;
      const last = Math.min(Math.ceil(high), this.width);
      for (let x = Math.floor(low); x < last; x++) {
        const share = (Math.min(high, x + 1) - Math.max(low, x)) * density;
        this.cover[x] += share;
        if (share > this.most[x]) {
          this.most[x] = share;
          this.colour[x] = colour;
        }
      }
    }

    // What a chunk holds within [from, to): its events, once where they overlap, and its cells, in what the events leave free.
    chunk(chunk, from, to, origin, nsPerPixel, colourOf) {
      const { start, end, reach, at, busy } = chunk;
      const width = 2 ** chunk.level;
      const paint = (low, high, density, colour) => {
        const [a, b] = [Math.max(low, from), Math.min(high, to)];
        if (b > a) this.add((a - origin) / nsPerPixel, (b - origin) / nsPerPixel, density, colour);
      };
      const taken = []; // starts and ends of what the events cover, disjoint
      let done = -Infinity;
      for (let i = space.above(reach, from - width); i < start.length && start[i] < to + width; i++) {
        const low = Math.max(start[i], done);
        if (end[i] <= low) continue;
        paint(low, end[i], 1, colourOf(chunk.look[i], chunk.name[i]));
        taken.push(low, end[i]);
        done = end[i];
      }
      const zero = chunk.first * space.TILE * width;
      let next = 0;
      for (let i = space.above(at, (from - zero) / width - 1); i < at.length; i++) {
        const low = zero + at[i] * width;
        const high = low + width;
        if (low >= to) break;
        while (next < taken.length && taken[next + 1] <= low) next += 2;
        let free = width;
        for (let k = next; k < taken.length && taken[k] < high; k += 2) free -= Math.min(taken[k + 1], high) - Math.max(taken[k], low);
        if (free <= 0) continue;
        const density = Math.min((busy[i] / 65535) * (width / free), 1);
        const colour = colourOf(chunk.cellLook[i], chunk.cellName[i]);
        let from_ = low;
        for (let k = next; k < taken.length && taken[k] < high; k += 2) {
          paint(from_, Math.max(taken[k], low), density, colour);
          from_ = taken[k + 1];
        }
        paint(from_, high, density, colour);
      }
    }

    // Into two rows of an image: the first as opaque as the pixel is busy, the second opaque where anything runs at all.
    // Rounding is carried on to the next pixel: the sum of a row stays within one pixel of the truth.
    paint(pixels, shade, presence) {
      let carry = 0;
      for (let x = 0; x < this.width; x++) {
        const cover = Math.min(this.cover[x], 1);
        if (cover <= 1e-9) {
          pixels[shade + x] = pixels[presence + x] = 0;
          continue;
        }
        const exact = 255 * cover + carry;
        const alpha = Math.max(0, Math.min(255, Math.round(exact)));
        carry = exact - alpha;
        pixels[shade + x] = ((alpha << 24) | this.colour[x]) >>> 0;
        pixels[presence + x] = (0xff000000 | this.colour[x]) >>> 0;
      }
    }
  }

  // A counter's mean (by time) and largest value of each pixel, as shares of its top; 0 where nothing is known.
  function curve(pieces, origin, nsPerPixel, width) {
    const [mean, most, known] = [0, 1, 2].map(() => new Float32Array(width));
    for (const [chunk, from, to] of pieces) {
      const cell = 2 ** chunk.level;
      const zero = chunk.first * space.TILE * cell;
      for (let i = space.above(chunk.at, (from - zero) / cell - 1); i < chunk.at.length; i++) {
        const start = Math.max(zero + chunk.at[i] * cell, from);
        const end = Math.min(zero + (chunk.at[i] + 1) * cell, to);
        if (start >= to) break;
        const [low, high] = [Math.max((start - origin) / nsPerPixel, 0), Math.min((end - origin) / nsPerPixel, width)];
        for (let x = Math.floor(low); x < Math.min(Math.ceil(high), width); x++) {
          const share = Math.min(high, x + 1) - Math.max(low, x);
          if (share <= 0) continue;
          mean[x] += (share * chunk.busy[i]) / 65535;
          known[x] += share;
          most[x] = Math.max(most[x], chunk.cellRow[i] / 65535);
        }
      }
    }
    for (let x = 0; x < width; x++) if (known[x]) mean[x] /= known[x];
    return { mean, most };
  }

  // `#rrggbb` as the lower three bytes of a little-endian pixel.
  function packed(hex) {
    const value = parseInt(hex.slice(1), 16);
    return ((value & 255) << 16) | (value & 0xff00) | (value >> 16);
  }

  // The same colour a little lighter or darker, by name, so that neighbours differ; or a colour of the name's own.
  function coloured(hex, name, byName) {
    const hash = Math.imul(name + 1, 2654435761) >>> 8;
    const [r, g, b] = byName ? hsl(((hash % 360) + 360) % 360, 0.5, 0.58) : hex.match(/[0-9a-f]{2}/gi).map((two) => parseInt(two, 16));
    const shift = byName ? 0 : ((hash % 5) - 2) * 7;
    return "#" + [r, g, b].map((one) => Math.max(0, Math.min(255, Math.round(one + shift))).toString(16).padStart(2, "0")).join("");
  }

  // A colour with a share of another in it.
  function mixed(hex, other, share) {
    const [a, b] = [hex, other].map((one) => one.match(/[0-9a-f]{2}/gi).map((two) => parseInt(two, 16)));
    return "#" + a.map((one, i) => Math.round(one + (b[i] - one) * share).toString(16).padStart(2, "0")).join("");
  }

  function hsl(h, s, l) {
    const part = (n) => {
      const k = (n + h / 30) % 12;
      return 255 * (l - s * Math.min(l, 1 - l) * Math.max(-1, Math.min(k - 3, 9 - k, 1)));
    };
    return [part(0), part(8), part(4)];
  }

  Object.assign(space, { Row, curve, packed, coloured, mixed });
})();
