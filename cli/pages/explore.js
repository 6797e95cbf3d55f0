// The explorer: every change is priced at once; once the page rests, the server searches anew.
const token = new URLSearchParams(location.search).get("token");
const SETTLE_MS = 120, REST_MS = 500; // without a change: the pipeline is drawn, a search begins
const inputs = [...document.querySelectorAll("[data-path]")], by = id => document.getElementById(id);
const ask = {listed: 0, shown: ""};
let changed = performance.now(), settling = 0, resting = 0, searched = null;

const value = e => e.dataset.values ? (e.value === e.dataset.now ? "" : e.dataset.values.split(" ")[e.value]) : e.value;
const sets = () => inputs.filter(value).map(e => `${e.dataset.path}=${value(e)}`);
async function answer(name) {
  const mine = sets();
  const reply = await fetch(`/${name}`, {method: "POST", body: JSON.stringify({sets: mine, ...ask}),
    headers: {"content-type": "application/json", "x-meshwright-token": token}});
  const json = reply.headers.get("content-type").includes("json");
  return {...json ? await reply.json() : {code: "refused", message: await reply.text(), hint: ""}, sets: mine.join()};
}
function problem(of) {
  by("problem").hidden = !of;
  if (of) by("problem").textContent = of.hint ? `${of.message} (${of.hint})` : of.message;
}
// Asks again while something changed during the last answer; an answer that is out of date is drawn all the same.
function live(name, draw, after = () => {}) {
  let busy = false, again = false;
  return async () => {
    if (busy) { again = true; return; }
    busy = true;
    do {
      again = false;
      by(name).classList.add("waiting");
      let got;
      try { got = await answer(name); } catch (error) { got = {code: "gone", message: "The server has ended: start it again", hint: ""}; }
      by(name).classList.remove("waiting");
      if (!got.code) { if (got.html !== undefined) by(name).innerHTML = got.html; draw(got); }
      else if (got.code !== "superseded") { problem(got); by("took").textContent = ""; }
      after();
    } while (again);
    busy = false;
  };
}
const pipeline = live("pipeline", () => document.querySelectorAll("#pipeline figure.pipeline").forEach(zoomable));
const study = live("study", () => {});
const frontier = live("frontier", () => {});
const price = live("price", got => {
  problem(null);
  inputs.filter(e => e.className === "knob").forEach(e => { words(e, got.knobs[e.dataset.path]); });
  by("asked").hidden = !got.command;
  by("command").textContent = got.command;
  requestAnimationFrame(() => { by("took").textContent = `Priced and drawn in ${Math.round(performance.now() - changed)} ms.`; });
  clearTimeout(settling);
  settling = setTimeout(pipeline, SETTLE_MS);
}, () => {
  clearTimeout(resting);
  if (sets().join() !== searched) resting = setTimeout(search, REST_MS);
});
const search = live("search", got => {
  searched = got.sets;
  Object.assign(ask, {listed: got.listed, shown: ""});
  changed = performance.now();
  price(); study(); frontier();
});

function words(e, absolute) {
  e.previousElementSibling.textContent = absolute || e.dataset.words.split(" ")[e.value];
  e.setAttribute("aria-valuetext", e.previousElementSibling.textContent);
}
function change() {
  changed = performance.now();
  clearTimeout(settling); clearTimeout(resting);
  price();
}
inputs.forEach(e => e.addEventListener("input", () => { if (e.dataset.values) words(e); change(); }));
by("reset").addEventListener("click", () => {
  inputs.forEach(e => { e.value = e.dataset.now || ""; if (e.dataset.values) words(e); });
  ask.listed = 0; ask.shown = "";
  change();
});
by("price").addEventListener("click", event => {
  const pick = event.target.closest(".pick");
  if (!pick) return;
  ask.shown = pick.dataset.id;
  changed = performance.now();
  price(); study();
});
price();
