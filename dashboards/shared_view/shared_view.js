// Shows a timeline out of this file: all its events are here, nothing is asked for.
(async () => {
  const space = window.gpuscopeTimeline;
  const told = JSON.parse(document.getElementById("told").textContent);

  space.Tiles = class extends space.Tiles {
    want() {}
  };

  class View extends space.Timeline {
    read() {
      const view = told.view;
      [this.from, this.to] = this.setup.window;
      [this.mark, this.range] = [this.span(view.mark), this.span(view.range)];
      this.pins = view.pin.split(",").filter(Boolean).map(Number).filter((one) => one in this.setup.tracks);
      this.toggled = new Set(view.tree.split(",").filter(Boolean));
      this.byName = view.colour === "name";
      this.search = "";
      this.selected = this.setup.flows ? this.setup.flows.event : null;
      this.recolour();
    }

    write() {}
    open() {}
    askRange() {
      this.say(`${space.duration(this.range[1] - this.range[0])} from ${space.offset(this.range[0])}`);
    }

    ask() {
      this.change(false);
    }

    select(track, event) {
      super.select(track, event);
      this.say(`${this.tiles.names.get(event.name) || "(no name)"}: ${space.duration(event.end - event.start)} at ${space.offset(event.start)}`);
    }

    // The neighbour of the selected event, among those that are here by themselves.
    next(by) {
      const row = this.layout.find((one) => one.key === this.cursor);
      const track = row && row.track >= 0 ? row.track : this.selected && this.selected.track;
      if (track === null || track === undefined || this.counter(track)) return;
      const found = [];
      this.visible(track, (event) => found.push(event));
      const now = found.findIndex((one) => this.selected && this.ref(track, one.row) === this.selected.ref);
      const next = found[now < 0 && by < 0 ? found.length - 1 : now + by];
      if (next) this.select(track, next);
    }
  }

  const unpacked = async (text) => {
    const bytes = Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();
  };
  const answers = await Promise.all(told.answers.map(unpacked));
  const timeline = space.current = new View(document.getElementById("timeline"), told);
  for (const answer of answers) timeline.tiles.keep(space.decode(answer));
  timeline.complete = () => true;
  document.getElementById("timeline-search").addEventListener("input", (event) => timeline.find(event.target.value));
  timeline.resize();
})();
