// Pictures of a pipeline: sliders and the wheel zoom, dragging moves, the pointer names a block.
"use strict";
const PASSES = {F: "forward", B: "backward", I: "backward of inputs", W: "backward of weights"};
const digits = x => x >= 1000 ? Math.round(x).toLocaleString("en") : x.toPrecision(3);
const seconds = s => !s ? "0 s" : s >= 1 ? `${digits(s)} s` : s >= 1e-3 ? `${digits(s * 1e3)} ms` : `${digits(s * 1e6)} us`;

function zoomable(figure) {
  const svg = figure.querySelector("svg"), height = svg.viewBox.baseVal.height, range = figure.querySelector("output");
  const zoom = figure.querySelector(".zoom"), position = figure.querySelector(".position");
  const start = +figure.dataset.start, length = figure.dataset.end - start;
  const width = () => 1000 / 2 ** zoom.value, left = () => (1000 - width()) * position.value;
  const draw = () => {
    svg.setAttribute("viewBox", `${left()} 0 ${width()} ${height}`);
    const at = x => seconds(start + x / 1000 * length);
    range.textContent = +zoom.value ? `${at(left())} to ${at(left() + width())}` : "";
  };
  const moveTo = x => { position.value = width() < 1000 ? Math.min(Math.max(x / (1000 - width()), 0), 1) : 0.5; draw(); };
  const of = event => (event.clientX - svg.getBoundingClientRect().left) / svg.getBoundingClientRect().width;
  zoom.addEventListener("input", draw);
  position.addEventListener("input", draw);
  svg.addEventListener("wheel", event => {
    if (event.deltaX || event.shiftKey) return;
    event.preventDefault();
    const share = of(event), under = left() + share * width();
    zoom.value = +zoom.value - Math.sign(event.deltaY) * 0.4;
    moveTo(under - share * width());
  }, {passive: false});
  let held = null;
  svg.addEventListener("pointerdown", event => { held = left() + of(event) * width(); svg.setPointerCapture(event.pointerId); });
  svg.addEventListener("pointerup", () => { held = null; });
  svg.addEventListener("pointermove", event => {
    if (held !== null) { moveTo(held - of(event) * width()); return; }
    const block = event.target.closest("rect"), line = figure.parentElement.querySelector(".readout");
    if (!block) return;
    const x = block.x.baseVal.value, from = start + x / 1000 * length, to = from + block.width.baseVal.value / 1000 * length;
    line.textContent = `Stage ${Math.floor(block.y.baseVal.value / 20)}: ${PASSES[block.getAttribute("class")]} of micro-batch `
      + `${block.dataset.m}, chunk ${block.dataset.c}, ${seconds(from)} to ${seconds(to)}`;
  });
}
document.querySelectorAll("figure.pipeline").forEach(zoomable);
