// Curves and maps of a study. `data` is put in front of this text by chart.html.
"use strict";
const NS = "http://www.w3.org/2000/svg", chart = document.getElementById("chart"), tip = document.getElementById("tip");
const pick = document.getElementById("metric");
data.metrics.forEach((m, i) => pick.add(new Option(m.name, i)));
const show = v => v === null ? "-" : v >= 1000 ? Math.round(v).toLocaleString("en") : v.toPrecision(4);
function el(parent, name, attrs, text) {
  const e = document.createElementNS(NS, name);
  for (const k in attrs) e.setAttribute(k, attrs[k]);
  if (text !== undefined) e.textContent = text;
  parent.appendChild(e); return e;
}
function tell(i, where) {
  const m = data.metrics[pick.value], p = data.points[i], v = m.of[i];
  const line = (word, side, value) => side ? `${word}: ${show(value)}  ${side.id}${side.problems ? " (does not run: " + side.problems + ")" : ""}` : "";
  tip.textContent = "";
  [where, line("held", p.held, v[0]), line("re-planned", p.best, v[1])].filter(Boolean).forEach((t, n) => {
    if (n) tip.appendChild(document.createElement("br"));
    tip.appendChild(document.createTextNode(t));
  });
}
function frame(h) {
  chart.textContent = "";
  const w = Math.max(chart.clientWidth, 280);
  return [el(chart, "svg", {viewBox: `0 0 ${w} ${h}`, height: h, role: "img", "aria-label": document.title}), w];
}
function curve() {
  const axis = data.axes[0], m = data.metrics[pick.value], h = 380, [svg, w] = frame(h);
  const box = {l: 64, r: w - 16, t: 16, b: h - 44}, f = axis.log ? Math.log : x => x;
  const xs = axis.at.map(f), x0 = Math.min(...xs), x1 = Math.max(...xs);
  const all = m.of.flat().filter(v => v !== null), lo = Math.min(...all), hi = Math.max(...all), pad = (hi - lo) * .08 || hi * .05 || 1;
  const X = i => x1 > x0 ? box.l + (xs[i] - x0) / (x1 - x0) * (box.r - box.l) : (box.l + box.r) / 2;
  const Y = v => box.b - (v - lo + pad) / (hi - lo + 2 * pad) * (box.b - box.t);
  for (let k = 0; k <= 4; k++) {
    const v = lo - pad + (hi - lo + 2 * pad) * k / 4;
    el(svg, "line", {x1: box.l, x2: box.r, y1: Y(v), y2: Y(v), stroke: "var(--line)"});
    el(svg, "text", {x: box.l - 8, y: Y(v) + 4, "text-anchor": "end"}, show(v));
  }
  const room = Math.max(...axis.labels.map(label => label.length)) * 7 + 14;
  let every = 1;
  const at = i => {
    const half = axis.labels[i].length * 3.5;
    return Math.min(Math.max(X(i), box.l + half), box.r - half);
  };
  const close = n => xs.some((_, i) => i % n === 0 && i + n < xs.length && at(i + n) - at(i) < room);
  while (every < xs.length && close(every)) every *= 2;
  axis.labels.forEach((label, i) => {
    if (i % every === 0) el(svg, "text", {x: at(i), y: box.b + 20, "text-anchor": "middle"}, label);
  });
  if (data.now[0] >= 0) {
    const x = X(data.now[0]);
    el(svg, "line", {x1: x, x2: x, y1: box.t, y2: box.b, stroke: "var(--soft)", "stroke-dasharray": "4 4"});
    el(svg, "text", {x: x + 4, y: box.t + 10}, "plan");
  }
  [["--held", 0, "held"], ["--best", 1, "re-planned"]].forEach(([color, side, word]) => {
    let d = "", open = false;
    m.of.forEach((v, i) => {
      if (v[side] === null) { open = false; return; }
      d += `${open ? "L" : "M"}${X(i).toFixed(1)} ${Y(v[side]).toFixed(1)}`; open = true;
    });
    if (!d) return;
    if (!axis.words) el(svg, "path", {d, fill: "none", stroke: `var(${color})`, "stroke-width": side ? 2 : 3, "stroke-dasharray": side ? "7 4" : "none"});
    m.of.forEach((v, i) => { if (v[side] !== null && xs.length <= 80) el(svg, side ? "rect" : "circle", side
      ? {x: X(i) - 3, y: Y(v[side]) - 3, width: 6, height: 6, fill: `var(${color})`}
      : {cx: X(i), cy: Y(v[side]), r: 3.5, fill: `var(${color})`}); });
    el(svg, "text", {x: box.l + 4 + side * 110, y: h - 4, style: `fill: var(${color})`}, (side ? "- - " : "o-o ") + word);
  });
  const bar = el(svg, "line", {y1: box.t, y2: box.b, stroke: "var(--ink)", opacity: 0});
  svg.addEventListener("pointermove", e => {
    const x = (e.clientX - svg.getBoundingClientRect().left) * w / svg.getBoundingClientRect().width;
    let near = 0;
    xs.forEach((_, i) => { if (Math.abs(X(i) - x) < Math.abs(X(near) - x)) near = i; });
    bar.setAttribute("x1", X(near)); bar.setAttribute("x2", X(near)); bar.setAttribute("opacity", .4);
    tell(near, `${axis.path} = ${axis.labels[near]}`);
  });
}
function map() {
  const [down, across] = data.axes, rows = down.labels.length, cols = across.labels.length;
  const m = data.metrics[pick.value], best = m.of.map(v => v[1] !== null ? v[1] : v[0]);
  const known = best.filter(v => v !== null), lo = Math.log(Math.min(...known)), hi = Math.log(Math.max(...known));
  const width = Math.max(chart.clientWidth, 280), left = width < 600 ? 74 : 96;
  const side = Math.max(14, Math.min(40, (width - left - 12) / cols)), [svg] = frame(rows * side + 32);
  best.forEach((v, i) => {
    const r = Math.floor(i / cols), c = i % cols, t = v === null ? 0 : hi > lo ? (Math.log(v) - lo) / (hi - lo) : 0;
    const cell = el(svg, "rect", {x: left + c * side, y: 8 + r * side, width: side - 1, height: side - 1,
      fill: v === null ? "none" : `hsl(${212 - 12 * t} 62% ${86 - 62 * t}%)`, stroke: v === null ? "var(--line)" : "none", tabindex: 0});
    const say = () => tell(i, `${down.path} = ${down.labels[r]}, ${across.path} = ${across.labels[c]}`);
    cell.addEventListener("pointerenter", say); cell.addEventListener("focus", say);
    if (v !== null && side >= 36) el(svg, "text", {x: left + (c + .5) * side, y: 12 + (r + .5) * side, "text-anchor": "middle",
      style: `fill:${t > .69 ? "#fff" : "#000"};font-size:10px;pointer-events:none`}, show(v));
  });
  const every = Math.ceil(16 / side);
  down.labels.forEach((label, r) => { if (r % every === 0) el(svg, "text", {x: left - 6, y: 12 + (r + .5) * side, "text-anchor": "end"}, label); });
  const room = Math.max(...across.labels.map(label => label.length)) * 7 + 12;
  let step = 1;
  while (step < cols && step * side < room) step *= 2;
  across.labels.forEach((label, c) => {
    const x = left + (c + .5) * side;
    if (c % step === 0 && x + label.length * 3.5 < width)
      el(svg, "text", {x, y: 24 + rows * side, "text-anchor": "middle"}, label);
  });
  const key = document.createElement("p");
  key.className = "soft";
  key.textContent = `${down.path} down, ${across.path} across; light is low, dark is high.`;
  chart.appendChild(key);
}
const draw = () => data.axes.length === 2 ? map() : curve();
pick.addEventListener("change", draw); addEventListener("resize", draw); draw();
