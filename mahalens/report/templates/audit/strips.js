// The picture of a layer: a strip per node, its hyperplane in the middle, a mark per class mean.

const STRIPS = 40;
const ROW = 20;

const ORDERS = [
  ['class', `nearest ${noun}`],
  ['near', 'most distance-like first'],
  ['far', 'least distance-like first'],
  ['quiet', 'least active first'],
  ['wide', 'widest first'],
  ['unit', 'number'],
];

function ordered(layer, order) {
  const { columns } = layer;
  const by = (value, rising = true) => (a, b) => compare(value(a), value(b), rising);
  const unit = by((p) => columns.unit[p]);
  const near = by((p) => columns.near[p]);
  const keys = {
    class: [by((p) => ((columns.nearest?.[p] ?? -1) < 0 ? null : columns.nearest[p])), near],
    near: [near],
    far: [by((p) => columns.near[p], false)],
    quiet: [by((p) => columns.active[p])],
    wide: [by((p) => columns.std[p], false)],
    unit: [],
  }[order];
  return columns.unit.map((_, place) => place).sort((a, b) => {
    for (const key of keys) { const found = key(a, b); if (found) return found; }
    return unit(a, b);
  });
}

// Classes of a unit with their means: [label, mean of z, spread of z]; the mean of all without classes.
function classesOf(layer, place) {
  const { columns } = layer;
  if (!columns.class_mean) return [[null, columns.mean[place], columns.std[place]]];
  const which = columns.class_index?.[place] ?? columns.class_mean[place].map((_, label) => label);
  return which.map((label, k) => [label, columns.class_mean[place][k], columns.class_std[place][k]]);
}

// Half the width of the picture in spreads: as wide as the marks need. A few that lie far out
// stand at the edge, and so do the ends of bands.
function reachOf(layer) {
  const { columns } = layer;
  const sizes = [];
  columns.unit.forEach((_, place) => {
    const spread = columns.std[place];
    if (!(spread > 0) || columns.flags[place] & FLAGS.dead) return;
    for (const [, mean] of classesOf(layer, place)) if (known(mean)) sizes.push(Math.abs(mean / spread));
  });
  sizes.sort((a, b) => a - b);
  const wanted = 1.1 * (sizes[Math.floor(0.98 * (sizes.length - 1))] ?? 2);
  // Never so narrow that a mark which is near the line would look far from it.
  return Math.min(4, Math.max(columns.class_mean ? 1.5 : 2, wanted));
}

function tellNearest(layer, place) {
  const { columns } = layer;
  if (!known(columns.near[place])) return '';
  const label = columns.nearest?.[place] ?? -1;
  const away = number(columns.near[place], 2);
  const through = columns.through?.[place] === 1;
  if (label < 0) return through ? `passes through the mean of the data, ${away} spreads off` : `misses the mean of the data by ${away} spreads`;
  // Within reach, yet through none: it is as near to most of the others.
  if (columns.through?.[place] === 2) return `is near most ${noun === 'class' ? 'classes' : 'clusters'} at once and singles none out; the nearest is ${className(label)}, whose mean is ${away} of its spreads away`;
  return `${through ? 'passes through' : 'nearest is'} ${noun} ${className(label)}, whose mean is ${away} of its spreads away`;
}

function strip(layer, place, index, scale, lit) {
  const { columns } = layer;
  const { width, left, right, reach, across } = scale;
  const middle = index * ROW + ROW / 2;
  const spread = columns.std[place];
  const dead = (columns.flags[place] & FLAGS.dead) !== 0;
  const unit = columns.unit[place];
  const told = tellNearest(layer, place);
  const row = drawn('g', {
    class: dead ? 'strip dead' : 'strip', role: 'button', tabindex: index === 0 ? 0 : -1, 'data-place': place, 'data-unit': unit,
    'aria-label': `Unit ${unit}${dead ? ', dead' : ''}${told ? `: ${told}` : ''}`,
  });
  row.append(drawn('rect', { class: 'back', x: 1, y: index * ROW, width: width - 2, height: ROW, rx: 3, 'data-tip': `Unit ${unit}: active on ${percent(columns.active[place])} of the rows${told ? `\n${told}` : ''}` }));
  row.append(drawn('text', { x: left - 8, y: middle + 4, 'text-anchor': 'end' }, String(unit)));
  const held = (v) => across(Math.max(-reach, Math.min(reach, v)));
  if (spread > 0 && known(columns.low[place])) {
    const from = held(columns.low[place] / spread);
    row.append(drawn('rect', { class: 'band', x: from, y: middle - 6, width: Math.max(1, held(columns.high[place] / spread) - from), height: 12, rx: 2, 'pointer-events': 'none' }));
  }
  row.append(drawn('line', { class: 'plane', x1: across(0), x2: across(0), y1: index * ROW, y2: (index + 1) * ROW }));
  const nearest = columns.nearest?.[place] ?? null;
  const hits = [];
  for (const [label, mean, own] of spread > 0 ? classesOf(layer, place) : []) {
    if (!known(mean)) continue;
    const at = mean / spread;
    const hit = columns.through?.[place] === 1 && label === nearest;
    const beyond = Math.abs(at) > reach ? ', beyond the edge' : '';
    const name = label === null ? 'Mean of the data' : `${noun[0].toUpperCase()}${noun.slice(1)} ${className(label)}`;
    const sign = mark(label ?? OTHERS, held(at), middle, hit ? 6.2 : 4.4, {
      class: `mark${hit ? ' hit' : ''}${lit !== null && label !== null && lit !== label ? ' faded' : ''}`,
      'data-tip': `Unit ${unit}\n${name}: ${signed(at)} spreads of the unit${beyond}${label !== null && own > 0 ? `\n${signed(mean / own)} of its own spreads` : ''}\nmean z ${number(mean)}${known(own) ? ` ± ${number(own)}` : ''}`,
    });
    if (label === null) sign.setAttribute('fill', 'var(--distance)');
    else if (manyClasses && label === nearest) sign.setAttribute('fill', 'var(--distance)');
    if (hit || label === lit) hits.push(sign); else row.append(sign);
  }
  row.append(...hits);
  const strong = columns.through?.[place] === 1;
  let text = dead ? 'dead' : '';
  if (!dead && known(columns.near[place])) text = `${nearest !== null && nearest >= 0 ? cut(className(nearest), scale.narrow ? 6 : 14) : 'mean'} · ${columns.near[place] < 0.01 ? '< 0.01' : number(columns.near[place], 2)}`;
  row.append(drawn('text', { class: strong && !dead ? 'strong' : 'soft', x: right + 12, y: middle + 4 }, text));
  return row;
}

// One page of strips with its axis.
function strips(layer, places, width, lit) {
  const narrow = width < 560;
  const left = narrow ? 44 : 60;
  const right = width - (narrow ? 84 : 150);
  const reach = reachOf(layer);
  const across = linear(-reach, reach, left + 8, right - 8);
  const scale = { width, left, right, reach, across, narrow };
  const head = 40;
  const height = head + places.length * ROW + 42;
  const picture = drawn('svg', { width, height, viewBox: `0 0 ${width} ${height}`, role: 'group', 'aria-label': `Class means relative to each unit’s hyperplane, ${plural(places.length, 'unit')}` });
  const above = (x, text, anchor, style = 'soft') => picture.append(drawn('text', { class: style, x, y: head - 10, 'text-anchor': anchor }, text));
  above(left - 8, 'unit', 'end');
  above(across(0), narrow ? 'z = 0' : 'hyperplane z = 0', 'middle', 'strong');
  above(left + 8, '← z < 0', 'start');
  above(right - 8, 'z > 0 →', 'end');
  above(right + 12, narrow ? 'nearest' : `nearest, in its spreads`, 'start');
  const body = drawn('g', { transform: `translate(0 ${head})` });
  const bottom = places.length * ROW;
  for (const value of ticks(-reach, reach, narrow ? 5 : 9)) {
    body.append(
      drawn('line', { class: 'axis', x1: across(value), x2: across(value), y1: 0, y2: bottom + 4 }),
      drawn('text', { class: 'soft', x: across(value), y: bottom + 18, 'text-anchor': 'middle' }, (value > 0 ? '+' : '') + String(value).replace('-', '−')),
    );
  }
  body.append(drawn('text', { class: 'soft', x: (left + right) / 2, y: bottom + 36, 'text-anchor': 'middle' }, narrow ? 'distance, in spreads of z' : 'distance from the hyperplane, in spreads (standard deviations) of the unit’s z'));
  places.forEach((place, index) => body.append(strip(layer, place, index, scale, lit)));
  picture.append(body);
  return picture;
}

function stripPicture(layer, open) {
  const holder = byId('picture');
  const state = { order: layer.columns.nearest ? 'class' : 'near', page: 0, lit: null };
  let rows = ordered(layer, state.order);

  function draw() {
    const width = Math.max(280, holder.clientWidth);
    if (!layer.columns.std.some((spread) => spread > 0)) {
      holder.replaceChildren(element('p', {}, 'There is nothing to draw: no unit of this layer varies over the data.'));
      return;
    }
    holder.replaceChildren(strips(layer, rows.slice(state.page * STRIPS, (state.page + 1) * STRIPS), width, state.lit));
    pages(byId('picture-pages'), rows.length, STRIPS, state.page, (page) => { state.page = page; draw(); });
  }
  const orders = ORDERS.filter(([key]) => key !== 'class' || layer.columns.nearest);
  const counted = layer.count > rows.length ? `${rows.length.toLocaleString('en-GB')} of ${plural(layer.count, 'unit')} are in this page` : plural(rows.length, 'unit');
  byId('picture-controls').replaceChildren(
    choice('Order by', orders, state.order, (key) => { state.order = key; state.page = 0; rows = ordered(layer, key); draw(); }, 'picture-order'),
    element('span', {}, `${counted}. Click one to open it.`),
  );
  const legend = byId('class-legend');
  legend.replaceChildren();
  if (layer.columns.class_mean && !manyClasses) {
    data.classes.forEach((name, label) => legend.append(element('button', {
      type: 'button', 'aria-pressed': 'false', title: `Show ${noun} ${name} alone`, onclick: (event) => {
        state.lit = state.lit === label ? null : label;
        for (const button of legend.querySelectorAll('button')) button.setAttribute('aria-pressed', 'false');
        event.currentTarget.setAttribute('aria-pressed', String(state.lit === label));
        draw();
      },
    }, drawn('svg', { width: 14, height: 14, 'aria-hidden': 'true' }, mark(label, 7, 7, 4.6)), element('span', {}, name))));
  }
  const key = (sign, text) => legend.append(element('span', { class: 'key' }, drawn('svg', { width: 22, height: 16, 'aria-hidden': 'true' }, sign), text));
  if (layer.columns.through) key(drawn('circle', { cx: 11, cy: 8, r: 5.5, fill: 'none', stroke: 'var(--ink)', 'stroke-width': 2 }), 'passed through');
  key(drawn('rect', { class: 'band', x: 0, y: 3, width: 22, height: 10, rx: 2 }), `${100 * data.band[0]} to ${100 * data.band[1]} % of the rows`);
  holder.onclick = (event) => {
    const row = event.target.closest('.strip');
    if (row) open(Number(row.dataset.place), rows);
  };
  holder.onkeydown = (event) => {
    const row = event.target.closest('.strip');
    if (!row) return;
    if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); open(Number(row.dataset.place), rows); return; }
    const all = [...holder.querySelectorAll('.strip')];
    const to = { ArrowDown: all.indexOf(row) + 1, ArrowUp: all.indexOf(row) - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined || !all[to]) return;
    event.preventDefault();
    row.setAttribute('tabindex', -1);
    all[to].setAttribute('tabindex', 0);
    all[to].focus();
  };
  draw();
  return draw;
}
