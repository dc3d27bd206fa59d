// Places the operators of a flow from left to right, so that a loop looks like a loop: without its back edges a flow has
// no cycle, so every other edge leads to the right, and a back edge returns below the operators of its loop.

export const NODE = { width: 190, height: 74 };
const GAP = { across: 70, down: 26 };
const LANE = 34;

// `names` are the operators, `edges` {from, to, loop}, and `depth` says in how many loops an operator is. What is in no
// loop is placed above the loops, and each back edge below them, so that the ground of a loop holds only what is in it.
// Returns the places of the operators, the points of each edge, and the size of the picture.
export function place(names, edges, depth) {
  const forward = edges.filter((edge) => !edge.loop && edge.from !== edge.to);
  const rank = ranks(names, forward);
  const columns = [];
  const put = (id, at) => (columns[at] ??= []).push(id);
  names.forEach((name) => put(name, rank.get(name)));
  // An edge across several columns takes a place in each of them, so that it passes no operator.
  const chains = forward.map((edge, number) => {
    const chain = [edge.from];
    for (let at = rank.get(edge.from) + 1; at < rank.get(edge.to); at += 1) {
      const id = `\0${number}:${at}`;
      put(id, at);
      chain.push(id);
    }
    return [...chain, edge.to];
  });
  const links = chains.flatMap((chain) => chain.slice(1).map((id, place) => [chain[place], id]));
  const depthOf = (id) => (id.startsWith("\0") ? 0 : depth(id));
  order(columns, links, depthOf);
  const at = coordinates(columns, links, depthOf);
  const lanes = new Map();
  const bottom = Math.max(0, ...names.map((name) => at.get(name).y + NODE.height));
  const returning = edges.filter((edge) => edge.loop);
  returning.sort((a, b) => at.get(a.from).x - at.get(a.to).x - (at.get(b.from).x - at.get(b.to).x));
  returning.forEach((edge, number) => lanes.set(edge, bottom + LANE * (number + 1)));
  return {
    at,
    forward: forward.map((edge, number) => ({ edge, points: chains[number].map((id) => at.get(id)) })),
    returning: returning.map((edge) => ({ edge, lane: lanes.get(edge) })),
    width: Math.max(0, columns.length * (NODE.width + GAP.across) - GAP.across),
    height: bottom + LANE * (returning.length + 0.8),
  };
}

function ranks(names, edges) {
  const rank = new Map(names.map((name) => [name, 0]));
  for (let pass = 0; pass < names.length; pass += 1) {
    let moved = false;
    for (const { from, to } of edges) {
      if (rank.get(to) <= rank.get(from)) {
        rank.set(to, rank.get(from) + 1);
        moved = true;
      }
    }
    if (!moved) break;
  }
  return rank;
}

// Sorts each column by depth and then by the mean place of its neighbours, a few times in both directions.
function order(columns, links, depth) {
  for (let pass = 0; pass < 8; pass += 1) {
    const isForward = pass % 2 === 0;
    const places = new Map();
    columns.forEach((column) => column.forEach((id, place) => places.set(id, place)));
    const neighbours = new Map();
    for (const [a, b] of links) {
      const [of, by] = isForward ? [b, a] : [a, b];
      if (!neighbours.has(of)) neighbours.set(of, []);
      neighbours.get(of).push(by);
    }
    for (const column of isForward ? columns : [...columns].reverse()) {
      const mean = (id) => {
        const known = neighbours.get(id);
        return known ? known.reduce((sum, other) => sum + places.get(other), 0) / known.length : places.get(id);
      };
      const means = new Map(column.map((id) => [id, mean(id)]));
      column.sort((a, b) => depth(a) - depth(b) || means.get(a) - means.get(b));
      column.forEach((id, place) => places.set(id, place));
    }
  }
}

function coordinates(columns, links, depth) {
  const at = new Map();
  const tall = (id) => (id.startsWith("\0") ? 10 : NODE.height);
  // Where a column has something above a loop, all loops begin below it.
  const mixed = columns.filter((column) => column.some(depth));
  const above = (column) => column.filter((id) => !depth(id)).reduce((sum, id) => sum + tall(id) + GAP.down, 0);
  const loopsFrom = Math.max(0, ...mixed.map(above));
  columns.forEach((column, number) => {
    let y = 0;
    for (const id of column) {
      at.set(id, { x: number * (NODE.width + GAP.across), y, isBend: id.startsWith("\0") });
      y += tall(id) + GAP.down;
    }
  });
  // Pull each one towards the middle of its neighbours, without passing the one above.
  for (let pass = 0; pass < 6; pass += 1) {
    for (const column of pass % 2 ? [...columns].reverse() : columns) {
      let least = 0;
      for (const id of column) {
        if (depth(id)) least = Math.max(least, loopsFrom);
        const most = column.some(depth) && !depth(id) ? loopsFrom - tall(id) - GAP.down : Infinity;
        const others = links.filter((link) => link.includes(id)).map(([a, b]) => (a === id ? b : a));
        const middle = (other) => at.get(other).y + tall(other) / 2;
        const wanted = others.length
          ? others.reduce((sum, other) => sum + middle(other), 0) / others.length - tall(id) / 2
          : at.get(id).y;
        at.get(id).y = Math.max(least, Math.min(wanted, most));
        least = at.get(id).y + tall(id) + GAP.down;
      }
    }
  }
  const top = Math.min(...[...at.values()].map((point) => point.y));
  for (const point of at.values()) point.y -= top;
  return at;
}

// The path of an edge to the right, through the points that it passes.
export function forwardPath(points) {
  const ends = points.map((point, place) => {
    const middle = point.y + (point.isBend ? 5 : NODE.height / 2);
    const isFirst = place === 0;
    return { x: point.isBend ? point.x + NODE.width / 2 : isFirst ? point.x + NODE.width : point.x - 4, y: middle };
  });
  let path = `M${ends[0].x} ${ends[0].y}`;
  for (let place = 1; place < ends.length; place += 1) {
    const [a, b] = [ends[place - 1], ends[place]];
    const half = (a.x + b.x) / 2;
    path += ` C${half} ${a.y} ${half} ${b.y} ${b.x} ${b.y}`;
  }
  return path;
}

// The path of a back edge: down from its sender, back below everything, and up into the head.
export function returningPath(from, to, lane) {
  const round = 14;
  const apart = from === to ? NODE.width / 2 - 20 : 18;
  const [start, end] = [from.x + NODE.width / 2 + apart, to.x + NODE.width / 2 - apart];
  const [top, into] = [from.y + NODE.height, to.y + NODE.height + 5];
  return (
    `M${start} ${top} V${lane - round} Q${start} ${lane} ${start - round} ${lane}` +
    ` H${end + round} Q${end} ${lane} ${end} ${lane - round} V${into}`
  );
}
