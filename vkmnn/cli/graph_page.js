// The network as boxes in layers. Scopes are collapsed to one box each until they are opened.
const data = JSON.parse(document.getElementById("network").textContent);
const ops = data.ops;
const drawing = document.getElementById("graph");
const view = document.getElementById("view");
const panel = document.getElementById("detail");
const search = document.getElementById("search");
const paint = document.getElementById("paint");
const W = 200, H = 46, GAP_X = 28, GAP_Y = 34, FEW = 150;
const SVG = "http://www.w3.org/2000/svg";
const opened = new Set();
let boxes = [], picked = null;

const scopes = new Map(); // each scope's ops, by its path
ops.forEach((op, number) => {
  op.number = number;
  for (let depth = 1; depth <= op.path.length; depth++) {
    const key = op.path.slice(0, depth).join("/");
    if (!scopes.has(key)) scopes.set(key, { key, depth, ops: [] });
    scopes.get(key).ops.push(number);
  }
});
const slowest = Math.max(...ops.map((op) => op.us ?? 0), 0);

// The box that shows an op: its outermost scope that is not opened, or its own.
function boxOf(op) {
  for (let depth = 1; depth <= op.path.length; depth++) {
    const key = op.path.slice(0, depth).join("/");
    if (!opened.has(key)) return key;
  }
  return op.number;
}

function openFew() {
  opened.clear();
  const deepest = Math.max(0, ...ops.map((op) => op.path.length));
  for (let depth = 1; depth <= deepest; depth++) {
    const level = [...scopes.values()].filter((scope) => scope.depth === depth);
    level.forEach((scope) => opened.add(scope.key));
    if (new Set(ops.map(boxOf)).size > FEW) {
      level.forEach((scope) => opened.delete(scope.key));
      return;
    }
  }
}

function layout() {
  const byKey = new Map();
  for (const op of ops) {
    const key = boxOf(op);
    if (!byKey.has(key)) {
      const scope = typeof key === "string" ? scopes.get(key) : null;
      byKey.set(key, { key, scope, order: op.number, ops: [], into: new Map(), from: [], to: [] });
    }
    byKey.get(key).ops.push(op);
  }
  boxes = [...byKey.values()];
  for (const [source, target, tensor] of data.edges) {
    const from = byKey.get(boxOf(ops[source])), to = byKey.get(boxOf(ops[target]));
    if (from === to) continue;
    if (!from.into.has(to)) from.into.set(to, []);
    from.into.get(to).push(tensor);
  }
  for (const box of boxes) {
    box.rank = 0;
    for (const [to] of box.into) {
      if (to.order > box.order) {
        box.to.push(to);
        to.from.push(box);
      }
    }
  }
  boxes.sort((a, b) => a.order - b.order);
  for (const box of boxes) for (const to of box.to) to.rank = Math.max(to.rank, box.rank + 1);
  // A source is drawn just above its first reader.
  for (const box of boxes) {
    if (!box.from.length && box.to.length) {
      box.rank = Math.max(0, Math.min(...box.to.map((to) => to.rank)) - 1);
    }
  }
  place();
}

function place() {
  const rows = [];
  for (const box of boxes) (rows[box.rank] ??= []).push(box);
  const layers = rows.filter(Boolean);
  layers.forEach((row, number) => {
    row.forEach((box, at) => {
      box.layer = number;
      box.x = (at - (row.length - 1) / 2) * (W + GAP_X);
    });
  });
  const mean = (list, otherwise) =>
    list.length ? list.reduce((sum, box) => sum + box.x, 0) / list.length : otherwise;
  for (let sweep = 0; sweep < 8; sweep++) {
    const down = sweep % 2 === 0;
    for (const row of down ? layers : [...layers].reverse()) {
      for (const box of row) box.wish = mean(down ? box.from : box.to, box.x);
      row.sort((a, b) => a.wish - b.wish || a.order - b.order);
      spread(row);
    }
  }
  for (const box of boxes) box.y = box.layer * (H + GAP_Y);
}

// As near to where each wants to be as widths allow: blocks of touching boxes move together.
function spread(row) {
  const blocks = [];
  for (const box of row) {
    blocks.push({ boxes: [box], left: box.wish });
    while (blocks.length > 1) {
      const [before, last] = blocks.slice(-2);
      if (before.left + before.boxes.length * (W + GAP_X) <= last.left) break;
      blocks.length -= 2;
      const joined = [...before.boxes, ...last.boxes];
      const wish = joined.reduce((sum, each, at) => sum + each.wish - at * (W + GAP_X), 0);
      blocks.push({ boxes: joined, left: wish / joined.length });
    }
  }
  for (const block of blocks) {
    block.boxes.forEach((box, at) => {
      box.x = block.left + at * (W + GAP_X);
    });
  }
}

function element(name, attributes, parent) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent?.append(made);
  return made;
}

const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const time = (us) => (us >= 1000 ? `${(us / 1000).toFixed(2)} ms` : `${us.toFixed(1)} µs`);
const spent = (box) => box.ops.reduce((sum, op) => sum + (op.us ?? 0), 0);
const tail = (text) => text.slice(text.lastIndexOf("/") + 1);

function colourOf(box) {
  const op = box.ops[0];
  if (paint.value === "time") {
    const share = slowest ? Math.min(1, spent(box) / slowest) : 0;
    return `color-mix(in srgb, var(--c5) ${Math.round(100 * share)}%, var(--line))`;
  }
  if (paint.value === "where") {
    const where = new Set(box.ops.map((each) => each.where ?? ""));
    return where.size > 1 ? "var(--c3)" : data.places[[...where][0]] ?? "var(--other)";
  }
  return box.scope ? "var(--soft)" : data.colours[op.type] ?? "var(--other)";
}

function edge(from, to) {
  const x1 = from.x + W / 2, y1 = from.y + H, x2 = to.x + W / 2, y2 = to.y;
  const layers = Math.abs(to.layer - from.layer);
  if (to.order > from.order && layers > 1 && Math.abs(x1 - x2) < W) {
    const side = Math.max(x1, x2) + W / 2 + 14 + 4 * Math.min(layers, 12);
    return `M${x1},${y1}C${side},${y1 + 26} ${side},${y1 + 26} ${side},${(y1 + y2) / 2}` +
      `S${side},${y2 - 26} ${x2},${y2}`;
  }
  const bend = Math.max(18, Math.abs(y2 - y1) / 2);
  return `M${x1},${y1}C${x1},${y1 + bend} ${x2},${y2 - bend} ${x2},${y2}`;
}

function draw() {
  layout();
  view.replaceChildren();
  const lines = element("g", { class: "edges" }, view);
  for (const box of boxes) {
    for (const [to, tensors] of box.into) {
      const back = to.order < box.order ? " back" : "";
      const line = element("path", { d: edge(box, to), class: `edge${back}` }, lines);
      element("title", {}, line).textContent = tensors.slice(0, 6).join("\n");
    }
  }
  for (const box of boxes) view.append(drawn(box));
  mark();
}

function drawn(box) {
  const op = box.ops[0];
  const made = element("g", { class: box.scope ? "box scope" : "box", tabindex: "0", role: "button" });
  made.setAttribute("transform", `translate(${box.x},${box.y})`);
  box.element = made;
  element("rect", { width: W, height: H, rx: 7, class: "body" }, made);
  const stripe = element("rect", { width: 6, height: H - 12, x: 6, y: 6, rx: 3 }, made);
  stripe.style.fill = colourOf(box);
  const name = box.scope ? tail(box.scope.key) : op.type;
  element("text", { x: 20, y: 19, class: "name" }, made).textContent = short(name, 22);
  const about = box.scope ? `${box.ops.length} ops` : tail(op.name);
  element("text", { x: 20, y: 36, class: "about" }, made).textContent = short(about, 27);
  const us = spent(box);
  if (us) element("text", { x: W - 8, y: 19, class: "us" }, made).textContent = time(us);
  if (box.scope) element("text", { x: W - 8, y: 36, class: "us" }, made).textContent = "open";
  element("title", {}, made).textContent = box.scope ? box.scope.key : `${op.type} ${op.name}`;
  const act = () => (box.scope ? toggle(box.scope.key) : pick(op.number));
  made.addEventListener("click", () => moved || act());
  made.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") act();
  });
  return made;
}

function toggle(key) {
  const scope = scopes.get(key);
  if (opened.has(key)) for (const each of [...opened]) {
    if (each === key || each.startsWith(`${key}/`)) opened.delete(each);
  } else opened.add(key);
  draw();
  centre(boxes.find((box) => box.ops.some((op) => op.number === scope.ops[0])));
}

function mark() {
  for (const box of boxes) {
    const here = picked !== null && box.ops.some((op) => op.number === picked);
    box.element.classList.toggle("picked", here);
  }
}

function line(list, name, value) {
  if (value === undefined || value === null || value === "" || value.length === 0) return;
  const values = Array.isArray(value) ? value : [value];
  const term = document.createElement("dt");
  term.textContent = name;
  list.append(term);
  for (const each of values) {
    const item = document.createElement("dd");
    item.textContent = each;
    list.append(item);
  }
}

function pick(number) {
  const op = ops[number];
  picked = number;
  mark();
  const list = document.createElement("dl");
  line(list, "op", `${op.type} ${op.name}`);
  line(list, "nodes of the model", op.nodes);
  line(list, "kernels", op.kernels);
  line(list, "time", op.us === undefined ? "" : time(op.us));
  line(list, "runs on", op.where);
  line(list, "because", op.why);
  line(list, "reads", op.reads);
  line(list, "weights", op.weights);
  line(list, "makes", op.makes);
  line(list, "attributes", op.attrs);
  const close = document.createElement("p");
  op.path.forEach((_, depth) => {
    const key = op.path.slice(0, depth + 1).join("/");
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = `close ${op.path[depth]}`;
    button.addEventListener("click", () => toggle(key));
    close.append(button, " ");
  });
  panel.replaceChildren(list, close);
}

// --- moving about --------------------------------------------------------------------------------

let scale = 1, left = 0, above = 0, moved = false;
function look() {
  view.setAttribute("transform", `translate(${left},${above}) scale(${scale})`);
}
function fit() {
  const room = drawing.getBoundingClientRect();
  const x = boxes.map((box) => box.x), y = boxes.map((box) => box.y);
  const wide = Math.max(...x) - Math.min(...x) + W, high = Math.max(...y) + H;
  scale = Math.min(1.2, (room.width - 40) / wide, Math.max((room.height - 40) / high, 0.6));
  left = room.width / 2 - scale * (Math.min(...x) + wide / 2);
  above = 20;
  look();
}
function centre(box) {
  if (!box) return;
  const room = drawing.getBoundingClientRect();
  scale = Math.max(scale, 0.7);
  left = room.width / 2 - scale * (box.x + W / 2);
  above = room.height / 3 - scale * box.y;
  look();
}
function zoom(factor, x, y) {
  const next = Math.min(4, Math.max(0.02, scale * factor));
  left = x - (x - left) * (next / scale);
  above = y - (y - above) * (next / scale);
  scale = next;
  look();
}
drawing.addEventListener("wheel", (event) => {
  event.preventDefault();
  const room = drawing.getBoundingClientRect();
  const factor = Math.exp(-event.deltaY / 400);
  zoom(factor, event.clientX - room.left, event.clientY - room.top);
}, { passive: false });
drawing.addEventListener("pointerdown", (down) => {
  moved = false;
  const start = [down.clientX - left, down.clientY - above];
  const move = (event) => {
    if (Math.hypot(event.clientX - down.clientX, event.clientY - down.clientY) > 4) moved = true;
    left = event.clientX - start[0];
    above = event.clientY - start[1];
    look();
  };
  const end = () => {
    window.removeEventListener("pointermove", move);
    window.removeEventListener("pointerup", end);
  };
  window.addEventListener("pointermove", move);
  window.addEventListener("pointerup", end);
});
function middle(factor) {
  const room = drawing.getBoundingClientRect();
  zoom(factor, room.width / 2, room.height / 2);
}
function show(number) {
  const op = ops[number];
  op.path.forEach((_, depth) => opened.add(op.path.slice(0, depth + 1).join("/")));
  draw();
  pick(number);
  centre(boxes.find((box) => box.key === number));
}
function find() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return;
  const fits = (op) => {
    const text = [op.type, op.name, ...op.nodes, ...op.kernels ?? []].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  };
  const from = picked === null ? 0 : picked + 1;
  const next = [...ops.slice(from), ...ops.slice(0, from)].find(fits);
  document.getElementById("found").textContent =
    next ? `${ops.filter(fits).length} found` : "nothing found";
  if (next) show(next.number);
}

const on = (name, act) => document.getElementById(name).addEventListener("click", act);
on("closer", () => middle(1.5));
on("wider", () => middle(1 / 1.5));
on("fit", fit);
on("all", () => {
  for (const key of scopes.keys()) opened.add(key);
  draw();
  fit();
});
on("few", () => {
  opened.clear();
  draw();
  fit();
});
search.addEventListener("keydown", (event) => event.key === "Enter" && find());
paint.addEventListener("change", draw);
for (const row of document.querySelectorAll("#ops tbody tr")) {
  row.addEventListener("click", () => {
    show(Number(row.cells[0].dataset.value));
    drawing.scrollIntoView({ block: "nearest" });
  });
}
openFew();
draw();
fit();
