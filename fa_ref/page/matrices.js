// A matrix is a table that never changes its size, with outlines over it; a function has matrices and numbers.

function make(tag, parent, properties = {}) {
  const node = parent.appendChild(document.createElement(tag));
  return Object.assign(node, properties);
}

class Matrix {
  constructor(parent, name, rows, columns, width) {
    this.figure = make("figure", parent);
    const caption = make("figcaption", this.figure);
    make("b", caption, {textContent: name});
    this.shape = make("span", caption, {className: "shape", textContent: `${rows} × ${columns}`});
    this.badges = [];
    const scroll = make("div", this.figure, {className: "scroll"});
    this.layer = make("div", scroll, {className: width ? "grid" : "map"});
    this.layer.style.cssText = `--rows: ${rows}; --columns: ${columns}; --width: ${width}`;
    if (!width) {
      this.layer.setAttribute("role", "img");
      this.layer.ariaLabel = this.layer.title = `${name}, ${rows} × ${columns}, too large to show its numbers`;
      return;
    }
    const table = make("table", this.layer);
    table.setAttribute("aria-label", name);
    const head = make("tr", make("thead", table));
    make("td", head);
    for (let c = 0; c < columns; c++) make("th", head, {scope: "col", textContent: columns > 1 ? c : ""});
    const body = make("tbody", table);
    this.cells = Array.from({length: rows}, (_, r) => {
      const row = make("tr", body);
      make("th", row, {scope: "row", textContent: r});
      return Array.from({length: columns}, () => make("td", row));
    });
  }

  // value: {rows, columns, cells}, or nothing. change: what this step did to it
  show(value, change) {
    if (!this.cells || (value === this.value && change === this.change)) return;
    [this.value, this.change] = [value, change];
    const some = change?.length === 1 && new Set(pairs(change[0]).map(([index]) => index));
    const changed = n => change !== undefined && (!some || some.has(n));
    const {rows = 0, columns = 0, cells = []} = value ?? {};
    const decimals = cells.some(text => text.includes("."));
    this.figure.classList.toggle("absent", !value);
    if (value) this.shape.textContent = `${rows} × ${columns}`;
    this.cells.forEach((row, r) => row.forEach((cell, c) => {
      const there = r < rows && c < columns;
      const text = there ? cells[r * columns + c] : "";
      // a whole number gets four blanks, so that it stands above the digits before the point
      cell.textContent = decimals && /\d$|∞/.test(text) && !/[.e]/.test(text) ? text + "\u00a0".repeat(4) : text;
      cell.className = !there ? "none" : changed(r * columns + c) ? "new" : text === "nan" ? "nan" : "";
    }));
  }

  // which kinds of access it ever gets: their badges have a place from the beginning
  expect(kind) {
    this.badges[kind] = make("span", this.figure.firstChild, {className: kinds[kind], textContent: kinds[kind]});
  }

  // accesses: of this array in this step
  touch(accesses) {
    this.layer.querySelectorAll(".tile").forEach(tile => tile.remove());
    this.badges.forEach((badge, kind) => { badge.hidden = !accesses.some(([, stores]) => stores === kind); });
    for (const [, stores, top, bottom, left, right] of accesses) {
      const tile = make("div", this.layer, {className: `tile ${kinds[stores]}`});
      tile.style.cssText = `--top: ${top}; --bottom: ${bottom}; --left: ${left}; --right: ${right}`;
    }
  }
}

const kinds = ["load", "store"];
const memory = data.memory.map(([name, ...size]) => new Matrix($("memory"), name, ...size));
const touched = new Set(steps.flatMap(step => step.accesses.map(([which, stores]) => 2 * which + stores)));
for (const code of [...touched].sort((a, b) => a - b)) memory[code >> 1].expect(code & 1);

// The names of a function: counters, arrays, other numbers.

class Names {
  constructor(fn) {
    this.part = make("div", $("names"), {hidden: true});
    this.matrices = {};
    this.texts = {};
    this.list(fn.counters.filter(name => !Object.hasOwn(fn.arrays, name)), "counters");
    const arrays = make("div", this.part, {className: "matrices"});
    for (const name in fn.arrays) this.matrices[name] = new Matrix(arrays, name, ...fn.arrays[name]);
    this.list(fn.numbers.filter(name => !Object.hasOwn(fn.arrays, name)), "numbers");
  }

  list(names, className) {
    if (!names.length) return;
    const list = make("dl", this.part, {className});
    for (const name of names) {
      const pair = make("div", list);
      make("dt", pair, {textContent: name});
      this.texts[name] = make("dd", pair);
    }
  }

  show(held, changes) {
    for (const name in this.matrices) {
      const value = own(held, name);
      this.matrices[name].show(typeof value === "object" ? value : undefined, own(changes, name));
    }
    for (const name in this.texts) {
      this.texts[name].textContent = own(held, name) ?? "–";
      this.texts[name].className = Object.hasOwn(changes, name) ? "new" : "";
    }
  }
}

const names = data.functions.map(fn => new Names(fn));
const lists = document.querySelectorAll("#source ol");
