// One step is shown, and there are many ways to another one.

let now = -1;

function go(n) {
  n = Math.min(Math.max(n, 0), steps.length - 1);
  if (n === now) return;
  now = n;
  const step = steps[n];
  $("slider").value = $("jump").value = n + 1;
  $("slider").setAttribute("aria-valuetext", `step ${n + 1} of ${steps.length}`);
  light(lists[step.fn].children[step.line]);
  memory.forEach((matrix, index) => {
    const [name] = data.memory[index];
    matrix.show(step.memory[name], step.stored[name]);
    matrix.touch(step.accesses.filter(([which]) => which === index));
  });
  names.forEach((panel, fn) => { panel.part.hidden = fn !== step.fn; });
  names[step.fn].show(step.held, step.names);
  const {read, written} = steps.at(-1);
  $("bytes").textContent = `read ${thousands(step.read)} of ${thousands(read)} bytes, ` +
    `written ${thousands(step.written)} of ${thousands(written)}`;
  summarise(step, n);
  const touched = $("names").querySelector(".new") ?? $("memory").querySelector(".tile");
  if (touched) reveal(touched, $("values"), 30, 30);
}

const thousands = number => number.toLocaleString("en");

function light(line) {
  document.querySelector("#source [aria-current]")?.removeAttribute("aria-current");
  line.setAttribute("aria-current", "step");
  reveal(line, $("source"), 40, 80);
}

function reveal(part, panel, over, under) {                   // scroll no more than it takes, with room around it
  const place = part.getBoundingClientRect(), frame = panel.getBoundingClientRect();
  const above = place.top - frame.top - over, below = place.bottom - frame.bottom + under;
  if (above < 0) panel.scrollTop += above;
  else if (below > 0) panel.scrollTop += below;
}

function summarise(step, n) {
  const fn = data.functions[step.fn], label = fn.labels[step.line];
  const summary = $("summary");
  summary.replaceChildren();
  const begins = step.call !== steps[n - 1]?.call, calls = data.calls.filter(([which]) => which === step.fn).length;
  const call = data.calls.slice(0, step.call + 1).filter(([which]) => which === step.fn).length;
  if (begins && calls > 1) make("b", summary, {textContent: `Call ${call} of ${calls} begins. `});
  make("b", summary, {textContent: `Step ${n + 1}, line ${fn.first + step.line}${label ? ": " + label : ""}.`});
  const told = kinds.map((kind, stores) => {
    const places = step.accesses.filter(access => access[1] === stores).map(place);
    return places.length ? ` ${kind === "load" ? "Loads" : "Stores"} ${places.join("; ")}.` : "";
  });
  const set = Object.entries(step.names).filter(([, change]) => change !== null)
    .map(([name, change]) => Array.isArray(change) ? name : `${name} = ${change}`);
  if (set.length) told.push(` Sets ${set.join(", ")}.`);
  make("span", summary, {textContent: told.join("") || " Changes nothing."});
}

function place([which, , top, bottom, left, right]) {
  const [name, rows, columns] = data.memory[which];
  const parts = [range("row", top, bottom, rows), range("column", left, right, columns)];
  return [name, ...parts.filter(Boolean)].join(" ");
}

function range(what, start, stop, size) {
  if (stop - start === size) return "";
  return stop - start === 1 ? `${what} ${start}` : `${what}s ${start}–${stop - 1}`;
}

let playing = 0;

function play(on) {
  clearInterval(playing);
  playing = on ? setInterval(() => now < steps.length - 1 ? go(now + 1) : play(false), 700) : 0;
  $("play").setAttribute("aria-label", on ? "Pause" : "Play");
  $("play").title = on ? "Pause" : "Play";
  $("play").classList.toggle("on", on);
  $("summary").setAttribute("aria-live", on ? "off" : "polite");
}

function visit(n) {                                           // asked for by the reader
  play(false);
  go(n);
}

function access(direction) {
  let n = now + direction;
  while (n >= 0 && n < steps.length && !steps[n].accesses.length) n += direction;
  if (n >= 0 && n < steps.length) visit(n);
}

const actions = {
  first: () => visit(0), back: () => visit(now - 1), on: () => visit(now + 1), last: () => visit(steps.length - 1),
  backAccess: () => access(-1), onAccess: () => access(1),
};
for (const [id, action] of Object.entries(actions)) $(id).addEventListener("click", action);
$("play").addEventListener("click", () => {
  if (!playing && now === steps.length - 1) go(0);
  play(!playing);
});
$("slider").addEventListener("input", event => visit(Number(event.target.value) - 1));
$("jump").addEventListener("change", event => {
  visit((Number(event.target.value) || now + 1) - 1);
  event.target.value = now + 1;
});

document.addEventListener("keydown", event => {
  const {key, target} = event;
  if (event.ctrlKey || event.altKey || event.metaKey || target === $("jump")) return;
  const sideways = target.scrollWidth > target.clientWidth && target.closest(".scroll");
  if (key.startsWith("Arrow") && !event.shiftKey && sideways) return;
  const action = {ArrowLeft: event.shiftKey ? "backAccess" : "back", ArrowRight: event.shiftKey ? "onAccess" : "on",
                  Home: "first", End: "last"}[key];
  if (!action) return;
  event.preventDefault();
  actions[action]();
});

// Comments stand in a column of their own where there is room for the longest line: 7.25px a letter, 70px for numbers
// and margin, and 64% of the page as in page.css.
const longest = Math.max(...[...document.querySelectorAll("#source code")].map(line => line.textContent.length));
new ResizeObserver(() => {
  const room = document.body.clientWidth * (matchMedia("(min-width: 50rem)").matches ? 0.64 : 1);
  $("source").classList.toggle("narrow", longest * 7.25 + 70 > room);
}).observe(document.body);

go((parseInt(location.hash.slice(1)) || 1) - 1);
