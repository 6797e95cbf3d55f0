// Sliders of a report: every combination of marks has its price in the page.
const data = JSON.parse(document.getElementById("data").textContent), knobs = [...document.querySelectorAll(".knob")];
const at = marks => data.seconds[marks.reduce((index, mark) => index * data.factors.length + mark, 0)];
const sum = row => row.reduce((a, b) => a + b, 0), now = at(knobs.map(() => data.now));

function price() {
  const marks = knobs.map(knob => +knob.value), row = at(marks), step = sum(row), change = step / sum(now) - 1;
  knobs.forEach((knob, i) => {
    const factor = data.factors[marks[i]];
    knob.nextElementSibling.textContent = data.knobs[i].marks[marks[i]] + (factor === 1 ? "" : ` (x${factor})`);
    knob.setAttribute("aria-valuetext", data.knobs[i].marks[marks[i]]);
  });
  document.getElementById("priced").textContent = seconds(step);
  document.getElementById("change").textContent = marks.every(mark => mark === data.now) ? "a step, as it is"
    : `a step, ${change < 0 ? "" : "+"}${(change * 100).toFixed(1)} %`;
  const longest = Math.max(...row, ...now), terms = document.getElementById("terms");
  terms.replaceChildren(...data.terms.map((name, i) => i).sort((a, b) => now[b] - now[a]).flatMap(i => {
    const cells = ["span", "span", "span", "span"].map(tag => document.createElement(tag)), bar = document.createElement("i");
    cells[0].textContent = data.terms[i];
    cells[1].className = "n"; cells[1].textContent = seconds(row[i]);
    cells[2].className = "bar"; cells[2].append(bar);
    bar.className = data.sources[i]; bar.style.width = `${row[i] / longest * 100}%`;
    cells[3].className = "soft"; cells[3].textContent = now[i] ? `${((row[i] / now[i] - 1) * 100).toFixed(0)} %` : "";
    return cells;
  }));
}
if (knobs.length) {
  knobs.forEach(knob => knob.addEventListener("input", price));
  document.getElementById("reset").addEventListener("click", () => { knobs.forEach(knob => { knob.value = data.now; }); price(); });
  price();
}
// Paper shows what is folded.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(fold => { fold.open = true; }));
