// Arrows from what is selected: from the call that launched it, and across ranks for a collective.
(() => {
  const space = window.gpuscopeTimeline = window.gpuscopeTimeline || {};

  // The row a track is drawn in: its own, or that of the closed node it is in.
  function rowOf(timeline, shown, track) {
    return shown.find((one) => one.track === track) || shown.find((one) => one.holds && one.holds.has(track));
  }

  function arrow(pen, x0, y0, x1, y1) {
    const bend = Math.max(Math.abs(x1 - x0) / 2, 24);
    pen.beginPath();
    pen.moveTo(x0, y0);
    pen.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
    pen.stroke();
    pen.beginPath();
    pen.moveTo(x1 + 1, y1);
    pen.lineTo(x1 - 7, y1 - 4);
    pen.lineTo(x1 - 7, y1 + 4);
    pen.fill();
  }

  function paintFlows(timeline, pen, shown, look) {
    const flows = timeline.flows;
    const picked = timeline.selected;
    if (!flows || !picked || flows.ref !== picked.ref) return;
    pen.save();
    pen.beginPath();
    pen.rect(timeline.label, 0, timeline.plot, timeline.height);
    pen.clip();
    const middle = (row) => row.top + space.ROW / 2;
    const own = rowOf(timeline, shown, picked.track);
    pen.strokeStyle = pen.fillStyle = look.select;
    pen.lineWidth = 1.5;
    for (const { from, to } of flows.launches) {
      const [a, b] = [rowOf(timeline, shown, from.track), rowOf(timeline, shown, to.track)];
      if (a && b) arrow(pen, timeline.x(from.at), middle(a), timeline.x(to.at), middle(b));
    }
    if (flows.ranks.length > 1 && own) collective(timeline, pen, shown, look, flows.ranks, middle);
    pen.restore();
  }

  // Waiting is hatched, up to the last arrival; from there on all transfer.
  function collective(timeline, pen, shown, look, ranks, middle) {
    const last = ranks.reduce((one, other) => (other.start > one.start ? other : one));
    const from = rowOf(timeline, shown, last.track);
    for (const one of ranks) {
      const row = rowOf(timeline, shown, one.track);
      if (!row) continue;
      const [x, arrival, until] = [timeline.x(one.start), timeline.x(last.start), timeline.x(one.end)];
      hatch(pen, x, Math.min(arrival, until), row.top + 3, space.ROW - 6, look.back);
      pen.strokeRect(x, row.top + 2.5, Math.max(until - x, 2), space.ROW - 5);
      if (one !== last && from) {
        pen.setLineDash([4, 3]);
        arrow(pen, arrival - 12, middle(from), arrival, middle(row));
        pen.setLineDash([]);
      }
      const wait = last.start - one.start;
      const text = one === last ? `last: rank ${one.rank}` : `waits ${space.duration(wait)}`;
      if (Math.min(arrival, until) - x > text.length * 6 + 8 || one === last) {
        const at = one === last ? Math.max(x - text.length * 6.2 - 8, timeline.label + 2) : x + 5;
        pen.fillStyle = look.back;
        pen.fillRect(at - 2, row.top + 3, text.length * 6.2 + 4, space.ROW - 6);
        pen.fillStyle = look.select;
        pen.fillText(text, at, middle(row));
      }
    }
  }

  function hatch(pen, from, to, top, height, colour) {
    if (to - from < 3) return;
    pen.save();
    pen.beginPath();
    pen.rect(from, top, to - from, height);
    pen.clip();
    pen.strokeStyle = colour;
    pen.lineWidth = 1.5;
    pen.beginPath();
    const low = Math.max(from, -50);
    const high = Math.min(to, 6000);
    for (let x = low - height; x < high; x += 6) {
      pen.moveTo(x, top + height);
      pen.lineTo(x + height, top);
    }
    pen.stroke();
    pen.restore();
  }

  space.paintFlows = paintFlows;
})();
