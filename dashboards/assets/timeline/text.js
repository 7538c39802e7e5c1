// Times as text, as gpuscope/words/units.py writes them.
(() => {
  const UNITS = [[1, "ns"], [1e3, "µs"], [1e6, "ms"], [1e9, "s"]];

  const places = (value) => Math.min(Math.max(0, 3 - Math.floor(Math.log10(Math.abs(value)))), 9);
  // Four significant digits; rounding may carry into one more.
  const digits = (value) => {
    if (value === 0) return "0";
    const rounded = Number(value.toFixed(places(value)));
    return rounded.toFixed(places(rounded));
  };

  // `812 ns`, `25.40 µs`, `1.234 s`.
  function duration(ns) {
    const [size, unit] = [...UNITS].reverse().find(([one]) => Math.abs(ns) / one >= 0.99995) || UNITS[0];
    return `${size === 1 ? Math.round(ns) : digits(ns / size)} ${unit}`;
  }

  // `+1.234567 s`, `+47.299 ms`, `+812 µs`: a place relative to the run's origin.
  function offset(ns) {
    const micros = Math.floor(Math.abs(ns) / 1000);
    const sign = ns < 0 ? "-" : "+";
    if (micros < 1000) return `${sign}${micros} µs`;
    const [size, digits_, unit] = micros < 1e6 ? [1e3, 3, "ms"] : [1e6, 6, "s"];
    return `${sign}${Math.floor(micros / size)}.${String(micros % size).padStart(digits_, "0")} ${unit}`;
  }

  // Round times in [from, to), about `count`; with their labels, which count from `zero` where digits would not fit.
  function ticks(from, to, count) {
    const rough = Math.max((to - from) / count, 1);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((nice) => power * nice >= rough * 0.999);
    const near = Math.max(Math.abs(from), Math.abs(to)) < 2e4 * step;
    const zero = near ? 0 : Math.floor(from / (1000 * step)) * 1000 * step;
    const [size, unit] = [...UNITS].reverse().find(([one]) => one <= Math.max(Math.abs(from - zero), Math.abs(to - zero), 1)) || UNITS[0];
    const found = [];
    for (let at = Math.ceil(from / step) * step; at < to; at += step) {
      const value = Number(((at - zero) / size).toPrecision(9));
      found.push([at, `${zero ? "+" : ""}${value} ${unit}`]);
    }
    return { found, zero };
  }

  Object.assign(window.gpuscopeTimeline = window.gpuscopeTimeline || {}, { duration, offset, ticks });
})();
