const table = document.getElementById("steps");
const body = table.tBodies[0];
const rows = [...body.rows];
const search = document.getElementById("search");
const type = document.getElementById("type");
const least = document.getElementById("least");
const detail = document.getElementById("detail");
const marks = new Map(
  [...document.querySelectorAll("#timeline rect.step")].map((mark) => [mark.dataset.step, mark]),
);

function filter() {
  const words = search.value.toLowerCase().split(/\s+/);
  let shown = 0;
  let share = 0;
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    const part = Number(row.dataset.share);
    const fits =
      words.every((word) => text.includes(word)) &&
      (!type.value || row.dataset.type === type.value) &&
      part >= Number(least.value);
    row.hidden = !fits;
    marks.get(row.dataset.step)?.setAttribute("opacity", fits ? "1" : "0.15");
    shown += fits;
    share += fits ? part : 0;
  }
  document.getElementById("shown").textContent =
    `${shown} of ${rows.length} steps, ${share.toFixed(1)} % of the time`;
}

function pick(step) {
  for (const picked of document.querySelectorAll(".picked")) picked.classList.remove("picked");
  marks.get(step)?.classList.add("picked");
  const row = rows.find((each) => each.dataset.step === step);
  row.classList.add("picked");
  return row;
}

for (const control of [search, type, least]) control.addEventListener("input", filter);
for (const mark of document.querySelectorAll("#timeline rect")) {
  mark.addEventListener("mouseenter", () => {
    detail.textContent = mark.textContent;
  });
}
for (const [step, mark] of marks) {
  mark.addEventListener("click", () => {
    detail.textContent = mark.textContent;
    pick(step).scrollIntoView({ block: "nearest" });
  });
}
for (const row of rows) {
  row.addEventListener("click", () => {
    pick(row.dataset.step);
    detail.textContent = marks.get(row.dataset.step)?.textContent ?? "";
  });
}

const drawing = document.getElementById("timeline");
const ruler = [...drawing.querySelectorAll("g.tick")];
function zoom(factor) {
  const box = drawing.parentElement;
  const old = Number(drawing.dataset.zoom);
  const next = Math.min(Math.max(old * factor, 1), 256);
  const middle = (box.scrollLeft + box.clientWidth / 2) / (box.clientWidth * old);
  drawing.dataset.zoom = next;
  drawing.setAttribute("width", `${100 * next}%`);
  box.scrollLeft = middle * box.clientWidth * next - box.clientWidth / 2;
  thin();
}
// As many ticks as have room: each says at which zoom it appears.
function thin() {
  const room = Math.max(1, drawing.getBoundingClientRect().width / 110);
  for (const tick of ruler) tick.style.display = Number(tick.dataset.rank) <= room ? "" : "none";
}
document.getElementById("closer").addEventListener("click", () => zoom(2));
document.getElementById("wider").addEventListener("click", () => zoom(0.5));
window.addEventListener("resize", thin);
thin();
filter();
