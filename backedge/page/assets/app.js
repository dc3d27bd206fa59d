// The page of a run. It is given the status of one job as server-sent events and shows it; what does not change keeps its
// element, so that focus and scrolling stay where they are. Text from a run is only ever set as text.

const SVG = "http://www.w3.org/2000/svg";
const CHANNELS_SHOWN = 50;
const EPOCHS_SHOWN = 40;
const EPOCHS_LISTED = 15;
const BUSY_MIN = 0.8;
const HELD_MIN = 0.5;
const byId = (id) => document.getElementById(id);
const RECONNECT_MS = 3000;
const TOKEN = /^#token=(.+)$/;

// The token leaves the address, and with it the history of the browser. What is kept for the session is for this origin
// alone, and that includes the port.
if (TOKEN.test(location.hash)) {
  sessionStorage.setItem("token", TOKEN.exec(location.hash)[1]);
  history.replaceState(null, "", location.pathname);
}
addEventListener("hashchange", () => TOKEN.test(location.hash) && location.reload());
const token = sessionStorage.getItem("token") ?? "";
const call = (path, options = {}) => fetch(path, { ...options, headers: { "Backedge-Token": token } });

async function query(path) {
  const reply = await call(path);
  const found = await reply.json();
  if (reply.status === 403) throw new Error(found.error);
  return found;
}

let job = null;
let events = null;
let drawn = "";
let opened = null;
let kept = [];
let canSteer = false;
let asked = 0;

// -- amounts ------------------------------------------------------------------------------------------------------

const count = (number) => (number ?? null) === null ? "–" : Math.round(number).toLocaleString("en");
const rate = (number) => (number ?? null) === null ? "–" : number >= 10 || number === 0 ? count(number) : number.toPrecision(2);
const share = (part) => ((part ?? null) === null ? "–" : `${Math.round(100 * part)} %`);

function time(seconds) {
  if ((seconds ?? null) === null) return "–";
  if (seconds < 1) return `${Math.round(1000 * seconds)} ms`;
  if (seconds < 60) return `${seconds.toPrecision(3)} s`;
  const whole = Math.round(seconds);
  const minutes = Math.floor(whole / 60);
  return minutes < 60 ? `${minutes} min ${whole % 60} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function size(bytes) {
  if ((bytes ?? null) === null) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (bytes >= 1000 && unit < units.length - 1) {
    bytes /= 1000;
    unit += 1;
  }
  return `${unit && bytes < 100 ? bytes.toPrecision(3) : Math.round(bytes)} ${units[unit]}`;
}

const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString();

// -- elements -----------------------------------------------------------------------------------------------------

function make(kind, attributes = {}, ...children) {
  const element = kind.startsWith("svg:") ? document.createElementNS(SVG, kind.slice(4)) : document.createElement(kind);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Children of `parent`, one for each item, in order. Those of known keys are kept; several items may have one key.
function keep(parent, items, keyOf, create, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, number) => {
    const key = String(keyOf(item));
    const child = known.get(key) ?? create(item);
    known.delete(key);
    child.dataset.key = key;
    update(child, item);
    if (parent.children[number] !== child) parent.insertBefore(child, parent.children[number] ?? null);
  });
  while (parent.children.length > items.length) parent.lastElementChild.remove();
}

function rows(table, items, keyOf, cellsOf) {
  const create = () => make("tr");
  keep(byId(table).tBodies[0], items, keyOf, create, (row, item) => {
    const cells = cellsOf(item);
    while (row.cells.length < cells.length) row.insertCell();
    cells.forEach((cell, number) => {
      if (typeof cell === "string") say(row.cells[number], cell);
      else if (!row.cells[number].firstChild) row.cells[number].append(cell());
    });
  });
}

// -- the jobs -----------------------------------------------------------------------------------------------------

async function showJobs() {
  const listed = await query("/api/jobs");
  const jobs = listed.filter((found) => found.job);
  const create = (found) => {
    if (!found.job) return make("li");
    const button = make("button", { type: "button" });
    button.addEventListener("click", () => choose(found.job));
    return make("li", {}, button);
  };
  keep(byId("jobs"), listed, (found) => found.job || found.fault, create, (item, found) => {
    if (!found.job) return say(item, found.fault);
    say(item.firstChild, `${found.job} · ${found.state}`);
    item.firstChild.setAttribute("aria-current", String(found.job === job));
  });
  if (job === null && jobs.length) {
    // The address may name anything, also what cannot be decoded.
    const named = jobs.find((found) => location.hash === `#${encodeURIComponent(found.job)}`);
    choose((named ?? jobs.find((found) => found.is_live) ?? jobs[0]).job);
  } else if (job === null) {
    say(byId("job"), listed.length ? "No job can be read" : "No job yet");
  }
}

function choose(name) {
  job = name;
  drawn = "";
  location.hash = encodeURIComponent(name);
  closeCut();
  events?.abort();
  events = new AbortController();
  follow(name, events.signal);
  showJobs().catch(() => {});
}

// Server-sent events by fetch: an EventSource sends no headers.
async function follow(name, signal) {
  while (!signal.aborted) {
    try {
      const reply = await call(`/api/jobs/${encodeURIComponent(name)}/events`, { signal });
      const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        const blocks = (rest + part.value).split("\n\n");
        rest = blocks.pop();
        for (const block of blocks) if (!signal.aborted) take(block);
      }
    } catch {
      // It is aborted, or the server has ended.
    }
    if (!signal.aborted) fault("the server does not answer; it may have ended");
    await new Promise((done) => setTimeout(done, RECONNECT_MS));
  }
}

function take(block) {
  const [, event, data] = /^event: (.*)\ndata: (.*)$/.exec(block) ?? [];
  if (event === "status") show(JSON.parse(data));
  else if (event === "fault") fault(JSON.parse(data).error);
}

function fault(text) {
  byId("fault").hidden = !text;
  say(byId("fault"), text ?? "");
}

const idle = (task) => ((task.busy ?? null) === null ? null : Math.max(0, 1 - task.busy - task.held));

// The largest share of a task of an operator.
const most = (operator, kind) => Math.max(0, ...operator.tasks.map((task) => task[kind] ?? 0));

// -- one status ---------------------------------------------------------------------------------------------------

function show(status) {
  fault(null);
  document.title = `${status.job} · ${status.state} · Backedge`;
  say(byId("job"), status.job);
  say(byId("state"), status.state + (status.reason ? `: ${status.reason}` : ""));
  byId("state").dataset.state = status.state;
  const figures = {
    attempt: count(status.attempt),
    cut: (status.last_epoch ?? null) === null ? "none yet" : count(status.last_epoch),
    time: time(status.seconds),
    records: count(status.records),
    hops: count(status.hops),
    [status.is_live ? "told" : "told last"]: clock(status.at_s),
  };
  keep(byId("figures"), Object.entries(figures), ([name]) => name, () => make("div", {}, make("dt"), make("dd")), (pair, [name, text]) => {
    say(pair.children[0], name);
    say(pair.children[1], text);
  });
  showControl(status);
  showGraph(status);
  showPace(status);
  showLoops(status);
  showTasks(status);
  showCounts(status);
  showChannels(status);
  showBarriers(status);
  showEpochs(status);
  showTime(status);
}

function showTasks(status) {
  const tasks = status.operators.flatMap((operator) => operator.tasks.map((task) => ({ operator, task })));
  rows("tasks", tasks, ({ operator, task }) => `${operator.name}/${task.index}`, ({ operator, task }) => [
    operator.operators.join(" › "), `${operator.name}/${task.index}`, count(task.records_in), count(task.records_out),
    rate(task.in_per_s), rate(task.out_per_s), share(task.busy), share(task.held), share(idle(task)),
    task.calls_running || task.calls_waiting ? `${count(task.calls_running)} + ${count(task.calls_waiting)}` : "–",
  ]);
}

// What process classes have counted in this attempt, and how often resources are open and were opened; of what they have observed the number and the mean.
function showCounts(status) {
  const all = status.operators.flatMap((operator) => Object.entries(operator.counted).flatMap(([name, counted]) => [
    ...Object.entries(counted.counters).map(([of, total]) => [name, of, rate(total), "–"]),
    ...Object.entries(counted.histograms).map(([of, found]) => [name, of, count(found.count), rate(found.count ? found.sum / found.count : null)]),
  ]));
  for (const [name, { open, opened }] of Object.entries(status.resources)) {
    all.push([name, "processes that have it open", count(open), "–"], [name, "times opened, in all attempts", count(opened), "–"]);
  }
  byId("counts").closest("section").hidden = !all.length;
  rows("counts", all, ([name, of, , mean]) => `${name} ${of} ${mean === "–"}`, (cells) => cells);
}

function showChannels(status) {
  const waiting = status.channels.filter((channel) => channel.backlog_bytes).sort((a, b) => b.backlog_bytes - a.backlog_bytes);
  rows("channels", waiting.slice(0, CHANNELS_SHOWN), (c) => `${c.edge} ${c.sender} ${c.receiver}`, (channel) => [
    channel.sender, channel.receiver, count(channel.backlog), size(channel.backlog_bytes), time(channel.waiting_s),
    (channel.credit_bytes ?? null) === null ? "never full" : `${size(channel.credit_bytes)} of ${size(channel.window_bytes)}`,
  ]);
  const more = waiting.length - CHANNELS_SHOWN;
  say(byId("more-channels"), waiting.length === 0 ? "Nothing waits." : more > 0 ? `and ${count(more)} with less` : "");
}

// The operator that the others wait for: it is busy nearly all the time, and those before it are held.
function showPace(status) {
  const busiest = status.operators.reduce((found, operator) => (found === null || most(operator, "busy") > most(found, "busy") ? operator : found), null);
  const slowest = busiest !== null && most(busiest, "busy") >= BUSY_MIN ? busiest : null;
  const held = status.operators.filter((operator) => operator !== slowest && most(operator, "held") >= HELD_MIN).map((operator) => operator.name);
  const waits = held.length ? `; held: ${held.join(", ")}` : "";
  const text = slowest ? `${slowest.name} sets the pace: busy ${share(most(slowest, "busy"))}${waits}` : "No operator is busy all the time.";
  byId("pace").hidden = !status.is_live;
  say(byId("pace"), text);
  for (const node of byId("graph").querySelectorAll(".node")) node.classList.toggle("slowest", node.dataset.operator === slowest?.name);
}

function oldestButton(loop) {
  const button = make("button", { type: "button" });
  button.addEventListener("click", () => openCut(Number(button.dataset.epoch), ["inflight", loop.name]));
  return button;
}

function showLoops(status) {
  const create = (loop) => make("div", { class: "loop-card" }, make("h3"), make("p"), make("ul", { class: "rounds" }), make("p", { class: "legend" }), oldestButton(loop));
  const kept = status.epochs.findLast((epoch) => epoch.is_kept);
  keep(byId("loops"), status.loops, (loop) => loop.name, create, (card, loop) => {
    const [title, text, rounds, legend, oldest] = card.children;
    say(title, loop.name);
    oldest.hidden = kept === undefined;
    oldest.dataset.epoch = kept?.epoch;
    say(oldest, `oldest records in cut ${kept?.epoch}`);
    const cut = status.epochs.findLast((epoch) => epoch.state === "complete");
    const log = cut?.loops[loop.name];
    const logged = cut ? `${log ? `${count(log.records)} records, ${size(log.bytes)}` : "nothing"} in cut ${cut.epoch}` : "no cut yet";
    const inside = `${count(loop.records)} records inside (${size(loop.bytes)}), the longest wait is ${time(loop.waiting_s)}; `;
    const inRound = loop.round ? `; in round ${loop.round}` : "";
    say(text, (status.is_live ? inside : "") + logged + inRound);
    const highest = Math.max(1, ...Object.values(loop.rounds));
    rounds.hidden = Object.keys(loop.rounds).length === 0;
    say(legend, rounds.hidden ? "" : "records by rounds made, in the last second");
    rounds.setAttribute("aria-label", `How often records have gone round ${loop.name}`);
    const bar = () => make("li", {}, make("i"), make("span"), make("b"));
    keep(rounds, Object.entries(loop.rounds), ([number]) => number, bar, (item, [number, records]) => {
      say(item.children[0], count(records));
      item.children[1].style.height = `${(60 * records) / highest}%`;
      say(item.children[2], Number(number) >= 16 ? `${number}+` : number);
      item.setAttribute("aria-label", `${number} rounds: ${records} records`);
    });
  });
  byId("no-loop").hidden = status.loops.length > 0;
}

// Where the barriers of the open epochs are: a row for each operator, and the newest epoch in the graph.
function showBarriers(status) {
  const open = status.epochs.filter((epoch) => epoch.state === "open");
  const all = open.flatMap((epoch) => Object.entries(epoch.barriers).map(([name, at]) => ({ epoch, name, at })));
  byId("barriers").closest("section").hidden = !all.length;
  rows("barriers", all, ({ epoch, name }) => `${epoch.epoch} ${name}`, ({ epoch, name, at }) => [
    String(epoch.epoch), name, count(at.not_reached), count(at.aligning), count(at.captured), count(at.written),
  ]);
  const newest = open.at(-1);
  for (const operator of status.operators) {
    const node = byId("graph").querySelector(`[data-operator="${CSS.escape(operator.name)}"]`);
    const at = newest?.barriers[operator.name];
    const passed = at ? at.captured + at.written : 0;
    say(node.querySelector(".barrier"), at ? `${newest.epoch}: ${passed} of ${operator.tasks.length}` : "");
    node.classList.toggle("passed", Boolean(at) && passed === operator.tasks.length);
  }
}

function showEpochs(status) {
  kept = status.epochs.filter((epoch) => epoch.is_kept).map((epoch) => epoch.epoch);
  const first = status.epochs.length - EPOCHS_LISTED;
  const epochs = status.epochs.filter((epoch, number) => epoch.is_kept || number >= first).reverse();
  rows("epochs", epochs, (epoch) => `${epoch.epoch} ${epoch.is_kept}`, (epoch) => [
    epoch.is_kept ? () => openButton(epoch.epoch) : String(epoch.epoch), stateOf(epoch), time(epoch.seconds),
    time(epoch.align_s), time(epoch.write_s), time(epoch.manifest_s), size(epoch.written_bytes), logs(epoch),
    epoch.slowest ?? "–",
  ]);
}

function openButton(epoch) {
  const button = make("button", { type: "button" }, `open ${epoch}`);
  button.addEventListener("click", () => openCut(epoch));
  return button;
}

function stateOf(epoch) {
  const waits = Object.entries(epoch.waiting).map(([task, what]) => `${task}: ${what}`);
  const name = epoch.savepoint ? `, ${epoch.savepoint}` : "";
  const dropped = epoch.state === "complete" && !epoch.is_kept ? ", dropped" : "";
  const why = epoch.reason ? `: ${epoch.reason}` : waits.length ? `, waits for ${waits.slice(0, 3).join("; ")}` : "";
  return epoch.state + name + dropped + why;
}

function logs(epoch) {
  const told = Object.entries(epoch.loops).map(([loop, log]) => `${loop} ${count(log.records)} (${size(log.bytes)})`);
  return told.join(", ") || "–";
}

// -- the graph ----------------------------------------------------------------------------------------------------

function showGraph(status) {
  const shape = JSON.stringify(status.layout);
  if (shape !== drawn) {
    drawn = shape;
    byId("graph").replaceChildren(draw(status));
  }
  for (const operator of status.operators) {
    const node = byId("graph").querySelector(`[data-operator="${CSS.escape(operator.name)}"]`);
    const sum = (of) => operator.tasks.reduce((total, task) => total + (of(task) ?? 0), 0);
    const [busy, held] = [most(operator, "busy"), most(operator, "held")];
    const pace = status.is_live ? `${rate(sum((task) => task.in_per_s))} records/s` : `${count(sum((task) => task.records_in))} records`;
    say(node.querySelector(".pace"), `${operator.tasks.length} × · ${pace}${operator.rate && status.is_live ? ` of ${operator.rate}` : ""}`);
    const width = status.layout.node.width - 20;
    node.querySelector("rect.busy").setAttribute("width", width * Math.min(1, busy));
    node.querySelector("rect.held").setAttribute("x", 10 + width * Math.min(1, busy));
    node.querySelector("rect.held").setAttribute("width", width * Math.max(0, Math.min(held, 1 - busy)));
    say(node.querySelector("title"), `${operator.operators.join(" › ")}: busy ${share(busy)}, held ${share(held)}`);
  }
  for (const loop of status.loops) {
    const label = byId("graph").querySelector(`[data-loop="${CSS.escape(loop.name)}"]`);
    if (label) say(label, status.is_live ? `${loop.name}: ${count(loop.records)} inside, longest wait ${time(loop.waiting_s)}` : loop.name);
  }
}

// The places and paths are made by Python (page_layout.py).
function draw(status) {
  const { layout } = status;
  const [width, height] = [layout.width + 40, layout.height + 40];
  const svg = make("svg:svg", { viewBox: `-20 -20 ${width} ${height}`, role: "group", "aria-label": "Graph" });
  // It shrinks with the window as far as it can be read, and scrolls beyond.
  svg.style.width = `min(100%, ${width}px)`;
  svg.style.minWidth = `${Math.min(width, Math.max(0.7 * width, 320))}px`;
  const tips = ["tip", "tip loop"].map((kind) =>
    make("svg:marker", { id: kind.replace(" ", "-"), viewBox: "0 0 8 8", refX: 6, refY: 4, markerWidth: 9, markerHeight: 9, orient: "auto", markerUnits: "userSpaceOnUse" },
      make("svg:path", { d: "M0 0 L8 4 L0 8 Z", class: kind })));
  svg.append(make("svg:defs", {}, ...tips));
  for (const ground of layout.around) svg.append(make("svg:rect", { class: "around", ...ground, rx: 16 }));
  for (const d of layout.edges) svg.append(make("svg:path", { class: "edge", d, "marker-end": "url(#tip)" }));
  const labelled = new Set();
  for (const { loop, path, label: [x, y] } of layout.back) {
    svg.append(make("svg:path", { class: "back", d: path, "marker-end": "url(#tip-loop)" }));
    if (!labelled.has(loop)) svg.append(make("svg:text", { class: "loop", x, y, "text-anchor": "middle", "data-loop": loop }, loop));
    labelled.add(loop);
  }
  for (const operator of status.operators) svg.append(nodeOf(operator, layout));
  return svg;
}

function nodeOf(operator, { node, nodes, in_loop }) {
  const [x, y] = nodes[operator.name];
  const shown = operator.name.length > 24 ? `${operator.name.slice(0, 23)}…` : operator.name;
  const more = operator.operators.length > 1 ? ` +${operator.operators.length - 1}` : "";
  const bar = { class: "bar", x: 10, y: 56, width: node.width - 20, height: 8, rx: 2 };
  return make("svg:g", { class: `node${in_loop.includes(operator.name) ? " in-loop" : ""}`, transform: `translate(${x} ${y})`, "data-operator": operator.name },
    make("svg:title"),
    make("svg:rect", { class: "box", width: node.width, height: node.height, rx: operator.is_source || operator.is_sink ? 22 : 7 }),
    make("svg:text", { class: "name", x: 12, y: 22 }, shown + more),
    make("svg:text", { class: "quiet pace", x: 12, y: 42 }),
    make("svg:text", { class: "barrier", x: node.width - 12, y: -5, "text-anchor": "end" }),
    make("svg:rect", bar),
    make("svg:rect", { ...bar, class: "busy", width: 0 }),
    make("svg:rect", { ...bar, class: "held", width: 0 }));
}

// -- the timeline -------------------------------------------------------------------------------------------------

function showTime(status) {
  const epochs = status.epochs.filter((epoch) => epoch.began_s !== null).slice(-EPOCHS_SHOWN);
  const failures = status.failures.filter((failure) => !epochs.length || failure.at_s >= epochs[0].began_s);
  const starts = [...epochs.map((epoch) => epoch.began_s), ...failures.map((failure) => failure.at_s)];
  const ends = [...epochs.map((epoch) => epoch.began_s + (epoch.seconds ?? 0)), ...failures.map((failure) => failure.at_s + (failure.seconds ?? 0))];
  const [from, until] = [Math.min(...starts), Math.max(...ends, status.is_live ? status.at_s : 0)];
  const [width, high] = [620, 96];
  const at = (seconds) => 8 + ((width - 16) * (seconds - from)) / Math.max(until - from, 1e-6);
  const svg = make("svg:svg", { viewBox: `0 0 ${width} ${high + 22}`, width: "100%", role: "img", "aria-label": `${epochs.length} epochs and ${failures.length} failures` });
  const tallest = Math.max(1e-6, ...epochs.map((epoch) => epoch.seconds ?? 0));
  for (const failure of failures) {
    const seconds = failure.seconds ?? until - failure.at_s;
    const band = { class: "failure", x: at(failure.at_s), y: 0, width: Math.max(3, at(failure.at_s + seconds) - at(failure.at_s)), height: high };
    svg.append(make("svg:rect", band, make("svg:title", {}, `${clock(failure.at_s)}: ${failure.reason}`)));
  }
  for (const epoch of epochs) {
    const wide = Math.max(3, Math.min(9, (width - 16) / EPOCHS_SHOWN - 3));
    let y = high;
    const title = () => make("svg:title", {}, `epoch ${epoch.epoch}: ${stateOf(epoch)}, ${time(epoch.seconds)}`);
    if (epoch.state !== "complete") {
      svg.append(make("svg:rect", { class: epoch.state === "open" ? "open" : "given-up", x: at(epoch.began_s), y: high - 30, width: wide, height: 30 }, title()));
      continue;
    }
    const parts = [["align", epoch.align_s], ["write", epoch.write_s], ["manifest", epoch.manifest_s]].filter(([, took]) => took !== null);
    const total = Math.max(parts.reduce((sum, [, took]) => sum + took, 0), 1e-6);
    for (const [kind, took] of parts) {
      const tall = ((high - 6) * (epoch.seconds ?? 0) * took) / (tallest * total);
      y -= tall;
      svg.append(make("svg:rect", { class: kind, x: at(epoch.began_s), y, width: wide, height: tall }, title()));
    }
  }
  svg.append(make("svg:path", { class: "axis", d: `M0 ${high} H${width}` }));
  if (starts.length) {
    svg.append(make("svg:text", { class: "quiet", x: 8, y: high + 16 }, clock(from)));
    svg.append(make("svg:text", { class: "quiet", x: width - 8, y: high + 16, "text-anchor": "end" }, clock(until)));
  }
  byId("timeline").replaceChildren(svg);
  keep(byId("failures"), [...status.failures].reverse(), (failure) => failure.at_s, () => make("li"), (item, failure) => {
    const from = failure.restored === null ? "the beginning" : `cut ${failure.restored}`;
    const healed = failure.seconds === null ? "has not run again yet" : `ran again after ${time(failure.seconds)}`;
    const loops = failure.in_loops ? ` with ${count(failure.in_loops)} records in loops` : "";
    const lost = failure.lost_records === null ? "" : `; done again: ${count(failure.lost_records)} records of ${time(failure.lost_s)}`;
    say(item, `${clock(failure.at_s)}: attempt ${failure.attempt} failed: ${failure.reason}; ${healed}, from ${from}${loops}${lost}`);
  });
}

// What can be seen of a cut.
const VIEWS = {
  state: { title: (name) => `state of ${name}`, heads: ["key", "value", "kind", "task"], one: "entry", many: "entries" },
  inflight: { title: (name) => `records in ${name}`, heads: ["rounds", "record", "sender", "receiver"], one: "record", many: "records" },
  positions: { title: () => "positions of sources", heads: ["split", "position"], one: "split", many: "splits" },
  transactions: { title: () => "transactions of sinks", heads: ["task", "transaction"], one: "transaction", many: "transactions" },
  diff: { title: (other) => `what has changed since cut ${other}`, heads: ["what", "name", "before", "after"], one: "difference", many: "differences" },
};

// -- a cut --------------------------------------------------------------------------------------------------------

async function openCut(epoch, choice) {
  const cut = await query(`/api/jobs/${encodeURIComponent(job)}/cuts/${epoch}`);
  if (cut.error) return fault(cut.error);
  opened = epoch;
  say(byId("cut-title"), `Cut ${epoch}`);
  const choices = [
    ...cut.operators.map((name) => ["state", name]),
    ...cut.loops.map((name) => ["inflight", name]),
    ["positions"],
    ["transactions"],
    ...kept.filter((other) => other < epoch).reverse().map((other) => ["diff", other]),
  ];
  const option = ([kind, name]) => make("option", { value: JSON.stringify(name === undefined ? [kind] : [kind, name]) }, VIEWS[kind].title(name));
  byId("what").replaceChildren(...choices.map(option));
  if (choice) byId("what").value = JSON.stringify(choice);
  byId("search").value = "";
  byId("cut").hidden = false;
  byId("cut-title").focus();
  byId("cut").scrollIntoView({ block: "nearest" });
  return ask();
}

function closeCut() {
  opened = null;
  byId("cut").hidden = true;
}

async function ask() {
  asked += 1;
  const question = asked;
  const [kind, name] = JSON.parse(byId("what").value);
  const place = name === undefined ? kind : `${kind}/${encodeURIComponent(name)}`;
  const search = encodeURIComponent(byId("search").value);
  const path = `/api/jobs/${encodeURIComponent(job)}/cuts/${opened}/${place}?search=${search}`;
  const found = await query(path);
  if (question !== asked) return; // an answer that was overtaken
  if (found.error) return say(byId("found"), found.error);
  const { heads, one, many } = VIEWS[kind];
  byId("contents").tHead.rows[0].replaceChildren(...heads.map((head) => make("th", { scope: "col" }, head)));
  byId("contents").tBodies[0].replaceChildren(
    ...found.entries.map((entry) => make("tr", {}, ...heads.map((head) => make("td", {}, String(entry[head] ?? "–"))))),
  );
  const more = found.more ? ` of ${count(found.entries.length + found.more)}` : "";
  const noun = found.entries.length + found.more === 1 ? one : many;
  return say(byId("found"), `${count(found.entries.length)}${more} ${noun}`);
}

// -- control ------------------------------------------------------------------------------------------------------

const SURE = { stop: "Stop the run with a cut?", cancel: "End the run now? What it did since its last cut is lost." };
const controls = byId("control").querySelectorAll("button");
const waiting = new Set();
let steered = null;

// The buttons are for the run that is shown; those that wait for an answer keep their focus and do nothing.
function showControl(status) {
  steered = status;
  byId("control").hidden = !canSteer || !status.is_live;
  for (const button of controls) button.setAttribute("aria-disabled", String(waiting.has(`${status.run} ${button.dataset.action}`)));
}

async function steer(button) {
  const { job, run } = steered;
  const { action } = button.dataset;
  const pressed = `${run} ${action}`;
  if (waiting.has(pressed) || (SURE[action] && !confirm(`${job}: ${SURE[action]}`))) return;
  const given = byId(action === "rescale" ? "tasks-wanted" : "cut-name").value;
  waiting.add(pressed);
  showControl(steered);
  say(byId("steered"), `${job}: ${button.textContent} …`);
  try {
    const found = await (await call(`/api/runs/${run}/${action}`, { method: "POST", body: given })).json();
    say(byId("steered"), `${job}: ${found.done ?? found.error}`);
  } catch {
    say(byId("steered"), `${job}: the server does not answer; it may have ended`);
  }
  waiting.delete(pressed);
  showControl(steered);
}

byId("control").addEventListener("submit", (event) => event.preventDefault());
for (const button of controls) button.addEventListener("click", () => steer(button));
query("/api/control").then((found) => (canSteer = found)).catch(() => {});

byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
byId("what").addEventListener("change", ask);
byId("close").addEventListener("click", closeCut);

showJobs().catch((error) => fault(error.message));
setInterval(() => showJobs().catch(() => {}), 5000);
