// steps.js, matrices.js and controls.js become one script, in this order, and share their names.
// Every step, with all that it shows: the data hold differences, see data.py.

const data = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);

// not what every object has by birth: a local name may be "constructor"
const own = (object, name) => Object.hasOwn(object, name) ? object[name] : undefined;
const steps = decoded();

function decoded() {
  const held = [];                                            // what the names of each call hold
  let memory = {};
  return data.steps.map(([line, call, names, stored, accesses, read, written]) => {
    const [fn, given, found] = data.calls[call];
    if (!held[call]) {
      held[call] = applied({}, given);
      memory = applied(memory, found);
    }
    held[call] = applied(held[call], names);
    memory = applied(memory, stored);
    return {line, fn, call, names, stored, accesses, read, written, memory, held: held[call]};
  });
}

function applied(before, changes) {
  const after = {...before};
  for (const name in changes) after[name] = value(own(before, name), changes[name]);
  return after;
}

function value(before, change) {
  if (!Array.isArray(change)) return change;
  if (change.length === 3) {
    const [rows, columns, cells] = change;
    return {rows, columns, cells: cells.split(" ")};
  }
  const cells = [...before.cells];
  for (const [index, text] of pairs(change[0])) cells[index] = text;
  return {...before, cells};
}

function pairs(words) {
  const list = words ? words.split(" ") : [];
  return Array.from({length: list.length / 2}, (_, n) => [Number(list[2 * n]), list[2 * n + 1]]);
}
