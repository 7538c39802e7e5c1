// Figures whose points lead somewhere, from the keyboard: arrows choose a point, Enter clicks it.
(() => {
  const chosen = new WeakMap(); // plot -> place among its points

  // The points that a click would do something with, bar by bar; of a heatmap its cells, row by row.
  function points(plot) {
    const found = [];
    (plot._fullData || []).forEach((trace, curveNumber) => {
      if (trace.visible !== true) return;
      if (trace.type === "heatmap") {
        trace.z.forEach((row, r) => row.forEach((z, c) => {
          if (Number.isFinite(z)) found.push({ curveNumber, pointNumber: [r, c], x: trace.x[c], y: trace.y[r], z, order: r * row.length + c });
        }));
        return;
      }
      const [xs, ys] = [trace.x || [], trace.y || []];
      for (let k = 0; k < Math.max(xs.length, ys.length); k++) {
        const custom = Array.isArray(trace.customdata) ? trace.customdata[k] : trace.customdata;
        const to = Array.isArray(custom) ? custom[0] : custom;
        const empty = trace.type === "bar" && !(trace.orientation === "h" ? xs[k] : ys[k]);
        if (to && !empty) found.push({ curveNumber, pointNumber: k, x: xs[k], y: ys[k], order: k * 1000 + curveNumber });
      }
    });
    return found.sort((a, b) => a.order - b.order);
  }

  function steps(key, all, place) {
    const heat = Array.isArray(all[place] && all[place].pointNumber);
    const down = heat ? all.findIndex((one, i) => i > place && one.pointNumber[1] === all[place].pointNumber[1]) - place : 1;
    const up = heat ? place - all.findLastIndex((one, i) => i < place && one.pointNumber[1] === all[place].pointNumber[1]) : 1;
    return {
      ArrowRight: 1, ArrowLeft: -1, ArrowDown: down > 0 ? down : 0, ArrowUp: up <= place ? -up : 0,
      Home: -place, End: all.length - 1 - place,
    }[key];
  }

  function figure(event) {
    const plot = event.target.querySelector(".js-plotly-plot");
    if (!plot || event.ctrlKey || event.metaKey || event.altKey) return;
    const all = points(plot);
    const known = chosen.has(plot);
    const place = Math.min(known ? chosen.get(plot) : 0, all.length - 1);
    const by = steps(event.key, all, place);
    if (!all.length || (by === undefined && event.key !== "Enter")) return;
    event.preventDefault();
    if (event.key === "Enter") {
      if (known) plot.emit("plotly_click", { points: [{ ...all[place], data: plot.data[all[place].curveNumber] }], event });
      return;
    }
    const next = known ? Math.max(0, Math.min(place + by, all.length - 1)) : 0;
    chosen.set(plot, next);
    const point = all[next];
    const { xaxis, yaxis } = plot._fullLayout;
    if (Array.isArray(point.pointNumber)) window.Plotly.Fx.hover(plot, { xval: xaxis.d2c(point.x), yval: yaxis.d2c(point.y) }, "xy");
    else window.Plotly.Fx.hover(plot, [{ curveNumber: point.curveNumber, pointNumber: point.pointNumber }]);
    const said = event.target.querySelector(".chosen");
    const labels = [...plot.querySelectorAll(".hoverlayer text")].map((one) => one.textContent).filter(Boolean);
    if (said) said.textContent = labels.join(", ") || `${point.y}, ${point.x}`;
  }

  document.addEventListener("keydown", (event) => {
    const target = event.target;
    if (!target.matches) return;
    if (target.matches(".chooses")) figure(event);
  });
})();
