// Draws each chart of #data over its SVG: cursor, zoom by dragging (double click: all), steps or tokens as the x axis.
// Colours come from the page's CSS, so that light, dark and a change between them need nothing here.
(() => {
  "use strict";
  const root = document.documentElement;
  const theme = new URLSearchParams(location.search).get("theme");
  if (theme === "dark" || theme === "light") root.dataset.theme = theme;
  const data = JSON.parse(document.getElementById("data").textContent);
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const figures = [...document.querySelectorAll("figure[data-chart]")];
  const live = [];
  let axis = "step";

  // Tokens seen after a step: linear between the known steps and beyond them.
  const tokensAt = (step) => {
    const { x, t } = data.tokens;
    if (x.length < 2) return x.length && x[0] ? (step * t[0]) / x[0] : step;
    let low = 0, high = x.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (x[middle] <= step) low = middle; else high = middle;
    }
    return Math.max(0, t[low] + ((step - x[low]) * (t[high] - t[low])) / (x[high] - x[low]));
  };
  const place = (step) => (axis === "tokens" ? tokensAt(step) : step);

  const short = (v) => {
    if (v == null) return "-";
    const a = Math.abs(v);
    if (a >= 1e12) return +(v / 1e12).toPrecision(4) + "T";
    if (a >= 1e9) return +(v / 1e9).toPrecision(4) + "G";
    if (a >= 1e6) return +(v / 1e6).toPrecision(4) + "M";
    if (a >= 1e4) return +(v / 1e3).toPrecision(4) + "k";
    if (a && a < 1e-3) return (+v.toPrecision(4)).toExponential();
    return String(+v.toPrecision(4));
  };

  const last = (values) => values.findLast((v) => v != null);

  // uPlot wants one x for all series: absent there is undefined (drawn through), null is a gap.
  const overSteps = (chart) => chart.x === "step";
  const joined = (chart) => uPlot.join(chart.series.map((s) => [overSteps(chart) ? s.x.map(place) : s.x, s.y]));

  const stacked = (table) => {
    const out = [table[0]];
    let sum = table[0].map(() => 0);
    for (let i = 1; i < table.length; ++i) {
      sum = sum.map((v, k) => v + (table[i][k] || 0));
      out.push(sum);
    }
    return [out[0], ...out.slice(1).reverse()];
  };

  const marks = (chart) => (u) => {
    const { ctx, bbox } = u;
    const ratio = devicePixelRatio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.strokeStyle = ctx.fillStyle = css("--soft");
    ctx.lineWidth = ratio;
    ctx.setLineDash([4 * ratio, 3 * ratio]);
    ctx.font = 11 * ratio + "px system-ui, sans-serif";
    ctx.textBaseline = "top";
    for (const mark of chart.marks) {
      const x = Math.round(u.valToPos(place(mark.x), "x", true));
      if (x < bbox.left - 1 || x > bbox.left + bbox.width + 1) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      const left = x - bbox.left < 60 * ratio;
      ctx.textAlign = left ? "left" : "right";
      ctx.fillText(mark.name, x + (left ? 3 : -3) * ratio, bbox.top + 2 * ratio);
    }
    // A plan or a baseline is named where it begins; a legend alone would leave two dashed lines of one colour to guess.
    if (chart.series.length > 2)
      for (const s of chart.series.filter((one) => one.dash)) {
        ctx.fillStyle = css("--c" + s.color);
        ctx.textAlign = "left";
        ctx.textBaseline = "bottom";
        ctx.fillText(s.name, bbox.left + (4 + 80 * s.color) * ratio, u.valToPos(s.y[0], "y", true) - ratio);
      }
    ctx.restore();
  };

  // The nearest measured point of each series, as thinned series do not share their x.
  const nearest = (u, s, at) => {
    const ys = u.data[s];
    if (s === 0 || ys[at] != null) return at;
    for (let d = 1; d < 40; ++d) {
      if (ys[at - d] != null) return at - d;
      if (ys[at + d] != null) return at + d;
    }
    return at;
  };

  const options = (chart, table, width) => {
    const count = chart.series.length;
    const order = chart.stack ? chart.series.map((s, i) => count - 1 - i) : chart.series.map((s, i) => i);
    const single = table[0].length === 1;
    const series = order.map((i) => {
      const s = chart.series[i];
      const color = () => css("--c" + s.color);
      return {
        label: s.name,
        stroke: color,
        fill: chart.stack ? color : undefined,
        width: s.marks || chart.stack ? 0 : 1.5,
        dash: s.dash ? [[7, 4], [2, 3], [9, 3, 2, 3]][Math.min(s.dash, 3) - 1] : undefined,
        paths: s.marks ? () => null : single && chart.stack ? uPlot.paths.bars({ size: [0.3, 60] }) : undefined,
        points: { show: s.marks || (!chart.stack && s.y.filter((v) => v != null).length === 1), size: 8, fill: color, stroke: color },
        value: (u, v, si, at) => short(at == null ? last(table[i + 1]) : table[i + 1][at]),
      };
    });
    const line = { stroke: () => css("--line"), width: 1 };
    return {
      width, height: 240,
      padding: [8, 26, 0, 0],
      legend: { live: true, markers: { width: 0, fill: (u, i) => (i ? css("--c" + chart.series[order[i - 1]].color) : "transparent") } },
      cursor: { dataIdx: nearest, points: { show: !chart.stack }, drag: { x: true, y: false } },
      scales: {
        x: { time: false, range: (u, low, high) => (low == null ? [0, 1] : low === high ? [low - 1, high + 1] : [low, high]) },
        y: {
          range: (u, low, high) => {
            if (low == null) return [0, 1];
            const pad = 0.06 * (high - low) || Math.abs(high) * 0.1 || 1;
            return chart.zero ? [Math.min(0, low), high + 0.14 * (high - Math.min(0, low)) || 1] : [low - pad, high + 2 * pad];
          },
        },
      },
      axes: [
        { stroke: () => css("--soft"), grid: { show: false }, ticks: line, values: (u, v) => v.map(short), size: 32, font: "12px system-ui, sans-serif" },
        { stroke: () => css("--soft"), grid: line, ticks: line, values: (u, v) => v.map(short), size: 56, font: "12px system-ui, sans-serif" },
      ],
      series: [{ label: overSteps(chart) ? axis : chart.x,
                 value: (u, v) => (overSteps(chart) ? (v ?? last(table[0])).toLocaleString("en", { maximumFractionDigits: 0 }) : short(v ?? last(table[0]))) }, ...series],
      hooks: { draw: [marks(chart)] },
    };
  };

  const draw = (figure) => {
    const chart = data.charts[+figure.dataset.chart];
    const holder = figure.querySelector(".plot");
    if (!chart || !holder) return;
    const table = joined(chart);
    holder.textContent = "";
    const plot = new uPlot(options(chart, table, holder.clientWidth || 320), chart.stack ? stacked(table) : table, holder);
    figure.classList.add("live");
    return { figure, holder, plot };
  };
  const drawAll = () => {
    for (const one of live.splice(0)) one.plot.destroy();
    for (const figure of figures) {
      const one = draw(figure);
      if (one) live.push(one);
    }
  };

  root.classList.add("js");
  drawAll();
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    for (const one of live) one.plot.setSize({ width: one.holder.clientWidth, height: 240 });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  for (const button of document.querySelectorAll(".axis button"))
    button.addEventListener("click", () => {
      axis = button.dataset.axis;
      for (const b of document.querySelectorAll(".axis button")) b.setAttribute("aria-pressed", b === button);
      drawAll();
    });
})();
