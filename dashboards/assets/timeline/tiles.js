// Windows of tracks as tiles: asked for once, kept, decoded from binary columns (data/window_columns.py says how).
window.gpuscopeTimeline = window.gpuscopeTimeline || {};
(() => {
  const TILE = 512; // cells of a tile
  const KEPT = 256 << 20; // bytes of columns kept; the oldest go first
  const COLUMNS = [
    ["start", Float64Array], ["end", Float64Array], ["row", Uint32Array], ["name", Uint32Array], ["look", Uint8Array],
    ["at", Uint32Array], ["busy", Uint16Array], ["count", Uint32Array], ["cellRow", Uint32Array],
    ["cellName", Uint32Array], ["cellLook", Uint8Array],
  ];

  // The header and, by track, its chunk: columns of the tiles [first, last) of one level. Times are ns from the origin.
  function decode(buffer) {
    const size = new Uint32Array(buffer, 0, 1)[0];
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
    const sums = [0, 1].map((which) => header.tracks.reduce((sum, one) => sum + one[which + 1], 0));
    let at = 4 + size;
    const columns = {};
    COLUMNS.forEach(([name, Kind], place) => {
      const length = sums[place < 5 ? 0 : 1];
      columns[name] = new Kind(buffer, at, length);
      at += Math.ceil((length * Kind.BYTES_PER_ELEMENT) / 8) * 8;
    });
    const chunks = new Map();
    let [wide, cells] = [0, 0];
    for (const [track, ownWide, ownCells] of header.tracks) {
      const chunk = { level: header.level, first: header.first, last: header.last };
      COLUMNS.forEach(([name], place) => {
        chunk[name] = place < 5 ? columns[name].subarray(wide, wide + ownWide) : columns[name].subarray(cells, cells + ownCells);
      });
      chunk.reach = latest(chunk.end);
      chunks.set(track, chunk);
      wide += ownWide;
      cells += ownCells;
    }
    return { header, chunks, bytes: buffer.byteLength };
  }

  // The latest end so far: monotonic, so that it can be searched.
  function latest(end) {
    const reach = new Float64Array(end.length);
    let most = -Infinity;
    for (let i = 0; i < end.length; i++) reach[i] = most = Math.max(most, end[i]);
    return reach;
  }

  // The first place whose value is greater than `value`.
  function above(values, value) {
    let [low, high] = [0, values.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] > value) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  // The tiles of a run: `find` what is here, `want` what is shown.
  class Tiles {
    constructor(url, arrived, fetcher = (address) => fetch(address)) {
      Object.assign(this, { url, arrived, fetcher });
      this.names = new Map(); // whole, as far as they were sent
      this.short = new Map(); // of those that have a short form
      this.kept = new Map(); // "track/level/tile" -> chunk
      this.answers = []; // [bytes, keys], the oldest first
      this.bytes = 0;
      this.requests = 0;
      this.wanted = null;
      this.busy = false;
      this.timer = 0;
      this.burst = 0; // requests since the view last rested
      this.lastWant = this.lastStart = -Infinity;
    }

    // What is written on an event.
    label(name) {
      return this.short.get(name) || this.names.get(name) || "";
    }

    // Cells between half a pixel and a pixel wide.
    static level(nsPerPixel) {
      return Math.max(0, Math.min(50, Math.floor(Math.log2(nsPerPixel) + 1e-9)));
    }

    static range(level, from, to) {
      const width = TILE * 2 ** level;
      return [Math.floor(from / width), Math.floor(to / width) + 1];
    }

    find(track, level, tile) {
      return this.kept.get(`${track}/${level}/${tile}`);
    }

    // What is here of the tiles that cover [from, to): [chunk, from, to] in order; coarser or finer where need be.
    pieces(track, level, from, to) {
      const found = [];
      const [first, last] = Tiles.range(level, from, to);
      for (let tile = first; tile < last; tile++) this.piece(track, level, tile, 2, found);
      return found;
    }

    piece(track, level, tile, deeper, found) {
      const width = TILE * 2 ** level;
      const add = (chunk) => {
        const before = found[found.length - 1];
        if (before && before[0] === chunk && before[2] === tile * width) before[2] = (tile + 1) * width;
        else found.push([chunk, tile * width, (tile + 1) * width]);
      };
      const exact = this.find(track, level, tile);
      if (exact) return add(exact);
      if (deeper && level > 0) {
        const finer = [2 * tile, 2 * tile + 1];
        if (finer.every((one) => this.find(track, level - 1, one))) {
          return finer.forEach((one) => this.piece(track, level - 1, one, deeper - 1, found));
        }
      }
      for (let up = 1; up <= 24; up++) {
        const coarser = this.find(track, level + up, Math.floor(tile / 2 ** up));
        if (coarser) return add(coarser);
      }
      return undefined;
    }

    // Ask for what is missing of some tracks in [from, to). In a burst of calls (a wheel that turns) at most three requests:
    // at its beginning, once within it, and when it rests.
    want(tracks, level, from, to) {
      const [first, last] = Tiles.range(level, from, to);
      const missing = tracks.filter((track) => {
        for (let tile = first; tile < last; tile++) if (!this.find(track, level, tile)) return true;
        return false;
      });
      const now = performance.now();
      if (now - this.lastWant > 400) this.burst = 0;
      this.lastWant = now;
      this.wanted = missing.length ? { tracks: missing, level, first, last } : null;
      clearTimeout(this.timer);
      if (!this.wanted || this.busy) return;
      const wait = this.burst === 0 ? 0 : this.burst === 1 ? Math.min(150, this.lastStart + 400 - now) : 150;
      if (wait <= 0) this.start();
      else this.timer = setTimeout(() => this.start(), wait);
    }

    async start() {
      const { tracks, level, first, last } = this.wanted;
      this.wanted = null;
      this.busy = true;
      this.burst++;
      this.requests++;
      this.lastStart = performance.now();
      try {
        const query = `level=${level}&first=${first}&last=${last}&tracks=${ranges(tracks)}`;
        const answer = await this.fetcher(`${this.url}/cells?${query}`);
        if (!answer.ok) throw new Error(`${answer.status}`);
        this.keep(decode(await answer.arrayBuffer()));
        this.arrived(null);
      } catch (error) {
        this.arrived(error);
      }
      this.busy = false;
      if (this.wanted) this.timer = setTimeout(() => this.wanted && !this.busy && this.start(), this.burst > 1 ? 150 : 0);
    }

    keep({ header, chunks, bytes }) {
      const keys = [];
      for (const [code, name] of Object.entries(header.names)) this.names.set(Number(code), name);
      for (const [code, name] of Object.entries(header.short)) this.short.set(Number(code), name);
      for (const [track, chunk] of chunks) {
        for (let tile = header.first; tile < header.last; tile++) {
          keys.push(`${track}/${header.level}/${tile}`);
          this.kept.set(keys[keys.length - 1], chunk);
        }
      }
      this.answers.push([bytes, keys]);
      this.bytes += bytes;
      while (this.bytes > KEPT && this.answers.length > 1) {
        const [old, gone] = this.answers.shift();
        this.bytes -= old;
        gone.forEach((key) => this.kept.delete(key));
      }
    }
  }

  // Numbers as `0-5,9`.
  function ranges(numbers) {
    const runs = [];
    for (const number of [...numbers].sort((a, b) => a - b)) {
      const run = runs[runs.length - 1];
      if (run && run[1] + 1 === number) run[1] = number;
      else runs.push([number, number]);
    }
    return runs.map(([low, high]) => (low === high ? `${low}` : `${low}-${high}`)).join(",");
  }

  Object.assign(window.gpuscopeTimeline, { TILE, Tiles, decode, above, ranges });
})();
