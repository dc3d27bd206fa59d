// A recorded run, and what became of it for each kill. Nothing here knows the protocol: every frame is one that the core
// was in. A node is [next node, sentence, forgets?, key, value, key, value, ...], all of them numbers (see play.py).

const SVG = "http://www.w3.org/2000/svg";
const PLAY_MS = 550;
const NAME_CHARACTERS = 24;
const ITEM_CHARACTERS = 7;
const byId = (id) => document.getElementById(id);
const recorded = JSON.parse(byId("recorded").textContent);
const { layout } = recorded;
const chosen = { run: 0, at: 0, kill: null };
let trail = [];
let timer = null;

// -- what was recorded --------------------------------------------------------------------------------------------

function follow(node, frame) {
  const found = [];
  while (node >= 0) {
    const [next, said, forgets, ...changes] = recorded.nodes[node];
    frame = forgets ? {} : { ...frame };
    for (let place = 0; place < changes.length; place += 2) {
      const key = recorded.keys[changes[place]];
      if (changes[place + 1] < 0) delete frame[key];
      else frame[key] = recorded.values[changes[place + 1]];
    }
    found.push({ said: recorded.said[said], frame });
    node = next;
  }
  return found;
}

function load() {
  const run = recorded.runs[chosen.run];
  trail = follow(run.first, {});
  if (chosen.kill !== null) {
    chosen.kill.step = Math.min(chosen.kill.step, run.kills.length - 1);
    const { step, process } = chosen.kill;
    trail = [...trail.slice(0, step + 1), ...follow(run.kills[step][process], trail[step].frame)];
  }
  chosen.at = Math.min(chosen.at, trail.length - 1);
  byId("at").max = trail.length - 1;
  byId("steps").querySelector("ol").replaceChildren(...trail.map(({ said }) => element("li", said)));
  show();
}

const named = (frame, kind) =>
  Object.entries(frame).filter(([key]) => key.startsWith(`${kind} `)).map(([key, value]) => [key.slice(kind.length + 1), value]);

// -- elements -----------------------------------------------------------------------------------------------------

function element(name, text = "", properties = {}) {
  const made = Object.assign(document.createElement(name), properties);
  made.textContent = text;
  return made;
}

function drawn(name, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// -- the picture --------------------------------------------------------------------------------------------------

const paths = [];
const nodes = new Map();
const items = new Map();

function draw() {
  const svg = drawn("svg", { viewBox: `-8 -8 ${layout.width + 16} ${layout.height + 16}`, "aria-hidden": "true" });
  svg.style.width = `${layout.width + 16}px`;
  const tip = svg.appendChild(drawn("marker", { id: "tip", viewBox: "0 0 8 8", refX: 6, refY: 4, markerWidth: 9, markerHeight: 9, markerUnits: "userSpaceOnUse", orient: "auto" }));
  tip.append(drawn("path", { d: "M0 0L8 4L0 8Z" }));
  for (const { path, loop, label } of layout.channels) {
    const line = svg.appendChild(drawn("path", { d: path, class: loop === null ? "edge" : "back", "marker-end": "url(#tip)" }));
    paths.push(line);
    if (loop !== null) svg.append(drawn("text", { x: label[0], y: label[1], class: "loop", "text-anchor": "middle" }, loop));
  }
  for (const [name, [x, y]] of Object.entries(layout.nodes)) {
    const group = svg.appendChild(drawn("g", { class: "node", transform: `translate(${x} ${y})` }));
    group.append(drawn("rect", { class: "box", width: layout.node.width, height: layout.node.height, rx: 8 }));
    group.append(drawn("text", { class: "name", x: 10, y: 20 }, cut(name, NAME_CHARACTERS)));
    const lines = [40, 56, 72].map((at) => group.appendChild(drawn("text", { class: at === 72 ? "log" : "quiet", x: 10, y: at })));
    nodes.set(name, { group, lines });
  }
  byId("graph").append(svg);
}

function kindOf(item) {
  if (item === ".") return ["over", "end"];
  const kind = { "|": "bar", "?": "probe", "^": "round" }[item[0]];
  if (kind === "bar") return [kind, item.slice(1)];
  return kind ? [kind, item] : ["record", cut(item.replace(/[()'"\s]/g, ""), ITEM_CHARACTERS)];
}

function place(frame) {
  const seen = new Set();
  for (const [number, [queue, wire]] of named(frame, "channel")) {
    const path = paths[number];
    const length = path.getTotalLength();
    let left = length - 14;
    [...queue, ...wire].forEach((item, nth) => {
      const [kind, text] = kindOf(item);
      const width = 12 + 7 * text.length;
      let name = `${number} ${item}`;
      while (seen.has(name)) name += "+";
      seen.add(name);
      if (!items.has(name)) {
        const group = drawn("g");
        group.append(drawn("rect", { x: -width / 2, y: -9, width, height: 18, rx: kind === "bar" ? 2 : 9 }), drawn("text", { y: 4 }, text));
        items.set(name, byId("graph").firstChild.appendChild(group));
      }
      const point = path.getPointAtLength(Math.max(left - width / 2, width / 2));
      items.get(name).setAttribute("class", `item ${kind} ${nth < queue.length ? "queue" : "wire"}`);
      items.get(name).style.transform = `translate(${point.x}px, ${point.y}px)`;
      left -= width + 4 + (nth === queue.length - 1 ? 14 : 0);
    });
  }
  for (const [name, group] of items) {
    if (seen.has(name)) continue;
    group.remove();
    items.delete(name);
  }
}

function picture(frame) {
  paths.forEach((path, number) => path.classList.toggle("off", chosen.run === 1 && layout.channels[number].loop !== null));
  for (const [name, { group, lines }] of nodes) {
    const [life, kept, saved] = frame[`process ${name}`];
    group.setAttribute("class", `node ${life} ${saved.length ? "saved" : ""} ${layout.in_loop.includes(name) ? "in-loop" : ""}`);
    const log = (frame[`log ${name}`] ?? []).map(([epoch, records]) => `log ${epoch}: ${records.map((item) => kindOf(item)[1]).join(" ") || "empty"}`);
    const lived = { runs: "", waits: "waits to be restored", restored: "restored", ended: "ended", dead: "killed" }[life];
    const texts = [kept.replace(/['"]/g, ""), lived || (saved.length ? `saved for cut ${saved.join(", ")}` : ""), log.join("; ")];
    lines.forEach((line, number) => { line.textContent = cut(texts[number], 28); });
  }
  place(frame);
}

// -- words --------------------------------------------------------------------------------------------------------

function spoken(item) {
  if (item === ".") return "the end";
  const kind = { "|": "barrier ", "?": "probe ", "^": "end of round " }[item[0]];
  return kind ? kind + item.slice(1) : item;
}

function words(frame) {
  const told = [];
  for (const [name, [life, kept, saved]] of named(frame, "process")) {
    const logs = (frame[`log ${name}`] ?? []).map(([epoch, records]) => `; its log for cut ${epoch} holds ${records.map(spoken).join(", ") || "nothing"}`);
    told.push(`${name} ${life === "waits" ? "waits to be restored" : life === "dead" ? "is dead" : life === "runs" ? "runs" : `is ${life}`}` +
      (kept ? `, keeps ${kept}` : "") + (saved.length ? `, has saved its state for cut ${saved.join(", ")}` : "") + logs.join(""));
  }
  for (const [number, [queue, wire]] of named(frame, "channel")) {
    const { sender, receiver } = layout.channels[number];
    const parts = [queue.length && `waiting ${queue.map(spoken).join(", ")}`, wire.length && `on the wire ${wire.map(spoken).join(", ")}`];
    told.push(`from ${sender} to ${receiver}: ${parts.filter(Boolean).join("; ")}`);
  }
  return told;
}

function verdict(frame) {
  const wrong = named(frame, "wrong");
  if (!frame.verdict) return [wrong.length ? "wrong" : "open", wrong.length ? "A cut is not consistent: what it lacks is lost when a run is restored from it." : "The run goes on. Nothing is wrong so far."];
  const told = ["Lost", "Doubled"].flatMap((what) => Object.entries(frame.verdict[what.toLowerCase()]).map(([sink, records]) => `${what} in ${sink}: ${records.join(", ")}`));
  if (told.length) return ["lost", `${told.join("; ")}.`];
  if (wrong.length) return ["wrong", "The output is whole, but the audit finds a statement violated."];
  return ["whole", "Nothing is lost, nothing is doubled, and every statement of the audit holds."];
}

function show() {
  const { said, frame } = trail[chosen.at];
  byId("at").value = chosen.at;
  byId("at").setAttribute("aria-valuetext", `step ${chosen.at} of ${trail.length - 1}: ${said}`);
  byId("place").textContent = `${chosen.at} of ${trail.length - 1}`;
  byId("said").textContent = said[0].toUpperCase() + said.slice(1) + ".";
  const killed = chosen.kill !== null && chosen.at > chosen.kill.step;
  byId("revive").hidden = chosen.kill === null;
  const isLast = chosen.at >= recorded.runs[chosen.run].kills.length;
  for (const button of byId("kills").children) button.setAttribute("aria-disabled", String(killed || isLast));
  picture(frame);
  byId("words").querySelector("ul").replaceChildren(...words(frame).map((text) => element("li", text)));
  const listed = byId("steps").querySelector("ol");
  listed.querySelector("[aria-current]")?.removeAttribute("aria-current");
  listed.children[chosen.at].setAttribute("aria-current", "step");
  const [state, text] = verdict(frame);
  byId("verdict").dataset.verdict = state;
  if (byId("verdict").textContent !== text) byId("verdict").textContent = text;
  byId("output").replaceChildren(...named(frame, "sink").map(([name, [published, waiting]]) => element("li",
    `${name}: ${published.join(", ") || "nothing yet"}${waiting.length ? ` (waiting for a cut: ${waiting.join(", ")})` : ""}`)));
  const cuts = named(frame, "cut").map(([epoch, [logged, tasks]]) => `cut ${epoch} is complete: ${tasks} snapshots, ` +
    (logged.length ? `in its logs ${logged.map(spoken).join(", ")}` : "its logs are empty") +
    (Number(epoch) === frame.restored ? `. Attempt ${frame.attempt} was restored from it` : ""));
  if (frame.attempt > 1 && frame.restored === null) cuts.unshift(`attempt ${frame.attempt} began from nothing, for no cut was complete`);
  const open = named(frame, "epoch").map(([epoch, [acknowledged, tasks]]) => `cut ${epoch}: ${acknowledged} of ${tasks} processes have acknowledged`);
  byId("cuts").replaceChildren(...[...cuts, ...open].map((told) => element("li", told)));
  const wrong = Object.fromEntries(named(frame, "wrong"));
  byId("audit").replaceChildren(...[...new Set([...recorded.statements, ...Object.keys(wrong)])].map((statement) => element("li",
    statement in wrong ? `${statement}. Violated: ${wrong[statement]}` : statement, { className: statement in wrong ? "wrong" : "" })));
}

// -- controls -----------------------------------------------------------------------------------------------------

function go(to) {
  chosen.at = Math.max(0, Math.min(to, trail.length - 1));
  if (chosen.at === trail.length - 1) stop();
  show();
}

function stop() {
  clearInterval(timer);
  timer = null;
  byId("play").textContent = "Play";
  byId("said").ariaLive = "polite";
}

byId("play").addEventListener("click", () => {
  if (timer !== null) return stop();
  if (chosen.at === trail.length - 1) go(0);
  byId("play").textContent = "Stop";
  byId("said").ariaLive = "off"; // Two sentences a second are too many to be read aloud.
  timer = setInterval(() => go(chosen.at + 1), PLAY_MS);
});
for (const [id, to] of [["back", () => chosen.at - 1], ["step", () => chosen.at + 1], ["end", () => trail.length - 1], ["at", () => Number(byId("at").value)]]) {
  byId(id).addEventListener(id === "at" ? "input" : "click", () => { stop(); go(to()); });
}
byId("log").addEventListener("change", () => { chosen.run = byId("log").checked ? 0 : 1; load(); });
byId("revive").addEventListener("click", () => {
  chosen.at = chosen.kill.step;
  chosen.kill = null;
  load();
  byId("kills").firstChild.focus();
});
recorded.processes.forEach((name, process) => {
  const button = element("button", name, { type: "button", className: "bad" });
  button.addEventListener("click", () => {
    if (button.getAttribute("aria-disabled") === "true") return;
    chosen.kill = { step: chosen.at, process };
    chosen.at += 1;
    load();
  });
  byId("kills").append(button);
});
draw();
load();
