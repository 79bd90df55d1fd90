// One node in a window of its own: what it measures, its histogram by class, its prototypes.

const dialog = byId('node');

function nodeAnswer(layer, place) {
  const { columns } = layer;
  const told = tellNearest(layer, place);
  if (columns.flags[place] & FLAGS.dead) return 'This unit is dead: it is not active on a single row, so nothing that follows can depend on it.';
  if (!told) return 'Nothing is known of where its hyperplane lies.';
  const chance = known(columns.chance?.[place]) ? ` Moved to the row of a random sample, it would pass through ${columns.nearest ? `a ${noun}` : 'the mean'} ${percent(columns.chance[place])} of the time.` : '';
  return `Its hyperplane ${told.replace(/^nearest is/, `passes through no ${noun}; the nearest is`)}.${chance}`;
}

// A ridge per class where there is a histogram, otherwise mean and spread of each class.
function ridges(layer, place, width) {
  const { columns } = layer;
  const kept = layer.histograms[String(columns.unit[place])];
  const own = new Map(classesOf(layer, place).map(([label, mean, spread]) => [label, [mean, spread]]));
  const labels = kept ? kept.rows.map(([label]) => (columns.class_mean ? label : null)) : [...own.keys()];
  const row = labels.length > 16 ? 18 : 25;
  const named = (label) => (label === null ? 'all rows' : className(label));
  const left = Math.min(Math.max(44, 26 + 7 * Math.max(...labels.map((label) => named(label).length))), 120, width * 0.3);
  const head = kept ? 18 : 6;
  const height = head + row * labels.length + 42;
  const ends = kept ? [kept.edges[0], kept.edges.at(-1)] : [columns.least[place], columns.greatest[place]];
  // The hyperplane is always in the picture, unless it is so far off that nothing else would be.
  let [from, to] = ends.map((v) => (known(v) ? v : 0));
  const room = 2 * (to - from);
  if (from > 0 && from < room) from = -0.04 * to;
  if (to < 0 && -to < room) to = -0.04 * from;
  if (from === to) { from -= 1; to += 1; }
  const across = linear(from, to, left + 6, width - 8);
  const title = kept ? 'Histogram of z by class' : 'Mean and spread of z by class';
  const picture = drawn('svg', { width, height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': title, class: kept ? 'histogram' : 'spreads' });
  const bottom = head + row * labels.length;
  for (const value of ticks(from, to, width < 380 ? 4 : 6)) {
    picture.append(
      drawn('line', { class: 'axis', x1: across(value), x2: across(value), y1: 4, y2: bottom + 4 }),
      drawn('text', { class: 'soft', x: across(value), y: bottom + 18, 'text-anchor': 'middle' }, number(value, 2)),
    );
  }
  let tallest = 0;
  const shares = kept?.rows.map(([, counts]) => {
    const total = counts.reduce((a, b) => a + b, 0);
    const found = counts.map((c) => (total ? c / total : 0));
    tallest = Math.max(tallest, ...found);
    return found;
  });
  // A few bins that hold nearly everything would flatten all others: they are cut, and it is said.
  const usual = shares ? shares.flat().filter((share) => share > 0).sort((a, b) => a - b) : [];
  const limit = 4 * (usual[Math.floor(0.95 * (usual.length - 1))] ?? 0);
  const tooTall = usual.length > 40 && tallest > 1.5 * limit;
  if (tooTall) tallest = limit;
  const nearest = columns.nearest?.[place] ?? null;
  labels.forEach((label, index) => {
    const base = head + row * (index + 1) - 3;
    const colour = label === null ? 'var(--distance)' : markColour(label);
    const hit = columns.through?.[place] === 1 && label === nearest;
    if (label !== null && !(manyClasses && label === OTHERS)) picture.append(mark(label, 8, base - 5, 4.6, { class: hit ? 'mark hit' : 'mark' }));
    picture.append(drawn('text', { class: hit ? 'strong' : '', x: 19, y: base - 1 }, cut(named(label), Math.floor((left - 20) / 6.6))));
    const [mean, spread] = own.get(label) ?? [null, null];
    const overlap = kept?.rows[index][2];
    const text = `${named(label)}${known(mean) ? `: mean z ${number(mean)}, spread ${number(spread)}` : ''}${known(overlap) && labels.length > 1 ? `\n${percent(overlap)} in common with the others` : ''}`;
    picture.append(drawn('line', { class: 'axis', x1: left + 6, x2: width - 8, y1: base, y2: base }));
    if (shares) {
      const high = (row + 12) / (tallest || 1);
      let path = `M${across(kept.edges[0]).toFixed(1)},${base}`;
      shares[index].forEach((share, bin) => {
        const y = (base - Math.min(share, tallest) * high).toFixed(1);
        path += `V${y}H${across(kept.edges[bin + 1]).toFixed(1)}`;
      });
      picture.append(drawn('path', { d: `${path}V${base}z`, fill: colour, 'fill-opacity': 0.55, stroke: colour, 'data-tip': text }));
    } else if (known(mean) && known(spread)) {
      const [low, high] = [Math.max(from, mean - spread), Math.min(to, mean + spread)];
      picture.append(drawn('rect', { x: across(low), y: base - 9, width: Math.max(2, across(high) - across(low)), height: 8, rx: 2, fill: colour, 'fill-opacity': 0.55, 'data-tip': text }));
    }
    if (known(mean) && mean >= from && mean <= to) picture.append(drawn('line', { x1: across(mean), x2: across(mean), y1: base - 11, y2: base, stroke: 'var(--ink)', 'stroke-width': 2, 'pointer-events': 'none' }));
  });
  if (from <= 0 && to >= 0) picture.append(drawn('line', { class: 'plane', x1: across(0), x2: across(0), y1: 2, y2: bottom, 'stroke-dasharray': '5 3', 'pointer-events': 'none' }));
  picture.append(drawn('text', { class: 'soft', x: width < 420 ? width / 2 : (left + width) / 2, y: bottom + 36, 'text-anchor': 'middle' }, from <= 0 && to >= 0 ? 'z, pre-activation (dashed: the hyperplane z = 0)' : `z, pre-activation (the hyperplane z = 0 is off to the ${from > 0 ? 'left' : 'right'})`));
  if (tooTall) picture.append(drawn('text', { class: 'soft', x: width - 8, y: 12, 'text-anchor': 'end' }, 'the tallest bars are cut'));
  return picture;
}

function sparkline(heights) {
  const points = heights.map((h, k) => `${((k * 100) / Math.max(1, heights.length - 1)).toFixed(1)},${(38 - 0.36 * h).toFixed(1)}`).join(' ');
  return drawn('svg', { viewBox: '0 0 100 40', width: '100%', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
    drawn('polyline', { points, fill: 'none', stroke: 'var(--distance)', 'stroke-width': 1.5, 'vector-effect': 'non-scaling-stroke' }));
}

function thumb(layer, sample, position) {
  const shown = data.samples.shown[String(sample)];
  if (shown === undefined) return null;
  const frame = element('span', { class: 'thumb' });
  if (data.samples.form === 'picture') {
    frame.append(element('img', { src: shown, alt: `sample ${sample}` }));
    if (layer.grid && position >= 0) {
      const [rows, across] = layer.grid;
      const ring = element('i', { title: 'where the patch lies' });
      ring.style.top = `${(100 * (Math.floor(position / across) + 0.5)) / rows}%`;
      ring.style.left = `${(100 * ((position % across) + 0.5)) / across}%`;
      frame.append(ring);
    }
  } else if (data.samples.form === 'line') frame.append(sparkline(shown));
  else frame.append(element('span', { class: 'words' }, shown));
  return frame;
}

function prototypeList(layer, place, reading, tell) {
  const held = layer.prototypes;
  const list = element('ul', { class: `thumbs ${reading}` });
  held[reading][place].forEach((sample, k) => {
    if (sample < 0) return;
    const position = held[`${reading}_position`]?.[place][k] ?? -1;
    const label = data.samples.labels[String(sample)];
    const where = layer.positions > 1 && !layer.grid && position >= 0 ? `, position ${position}` : '';
    list.append(element('li', {}, thumb(layer, sample, position),
      label === undefined ? null : element('strong', {}, cut(className(label), 24)), element('span', {}, tell(held[`${reading}_value`][place][k])), element('br'), `no. ${sample}${where}`));
  });
  if (!list.children.length) list.append(element('li', {}, 'None: it is never active.'));
  return list;
}

function prototypePanel(layer, place) {
  const panel = element('div', { id: 'node-prototypes' });
  if (!layer.prototypes) {
    panel.append(element('h3', {}, 'Prototypes'), element('p', { class: 'about' }, 'The audit kept none for this layer.'));
    return panel;
  }
  const ring = layer.grid && data.samples.form === 'picture' ? ' The ring shows where in the sample.' : '';
  panel.append(
    element('h3', {}, 'Nearest its zero set: the distance reading'),
    element('p', { class: 'about' }, `If the unit measures distance, these are what it measures from. Distance in input units.${ring}`),
    prototypeList(layer, place, 'near', (value) => number(value, 2)),
    element('h3', {}, 'Most active: the intensity reading'),
    element('p', { class: 'about' }, 'If the unit detects a feature, these have most of it. Activation.'),
    prototypeList(layer, place, 'active', (value) => number(value, 2)),
  );
  if (data.samples.left_out) panel.append(element('p', { class: 'about' }, `To keep this page light, ${plural(data.samples.left_out, 'sample')} of less telling units ${data.samples.left_out === 1 ? 'is' : 'are'} not shown as pictures.`));
  return panel;
}

function nodeNumbers(layer, place) {
  const { columns } = layer;
  const value = (key) => columns[key]?.[place];
  const rows = [
    ['Active on', `${percent(value('active'))} of rows`],
    ['z > 0 on', columns.positive ? `${percent(value('positive'))} of rows` : null],
    ['Mean of z', number(value('mean'))], ['Spread of z', number(value('std'))], ['Skewness', number(value('skewness'))],
    ['Range of z', `${number(value('least'))} to ${number(value('greatest'))}`],
    [`${100 * data.band[0]} to ${100 * data.band[1]} %`, `${number(value('low'))} to ${number(value('high'))}`],
    ['Median', number(value('median'))],
    ['Length of w', columns.length ? number(value('length')) : null],
    ['Data mean to hyperplane', columns.distance ? `${number(value('distance'))} input units` : null],
  ];
  return element('dl', { class: 'numbers' }, rows.filter(([, text]) => text !== null).map(([name, text]) => element('div', {}, element('dt', {}, name), element('dd', {}, text))));
}

// `among` are the places of the list it was opened from, to go on to the next one.
function openNode(layer, place, among) {
  const at = among.indexOf(place);
  const step = (by) => { if (among[at + by] !== undefined) openNode(layer, among[at + by], among); };
  const unit = layer.columns.unit[place];
  const button = (text, label, act, off) => element('button', { type: 'button', class: 'plain-button', 'aria-label': label, disabled: off, onclick: act }, text);
  const chartHolder = element('div', { id: 'node-histogram' });
  const kept = String(unit) in layer.histograms;
  dialog.replaceChildren(
    element('div', { class: 'node-head' },
      element('h2', { id: 'node-title' }, `Unit ${unit} `, element('small', {}, `of layer ${cut(layer.name, 60)}`)),
      element('div', {}, button('←', 'Previous unit', () => step(-1), at <= 0), button('→', 'Next unit', () => step(1), at >= among.length - 1), button('Close', 'Close', () => dialog.close()))),
    element('p', { class: 'node-answer' }, nodeAnswer(layer, place)),
    element('p', {}, tagsOf(layer, place)),
    element('div', { class: 'node-body' },
      element('div', {}, element('h3', {}, kept ? `How the ${layer.columns.class_mean ? nouns : 'rows'} lie along it` : 'Mean and spread along it'),
        element('p', { class: 'about' }, kept ? 'Every ridge has the same area; the tick is its mean.' : 'No histogram was kept for this unit: a bar is a mean, one spread to either side.'), chartHolder, nodeNumbers(layer, place)),
      prototypePanel(layer, place)),
  );
  dialog.onkeydown = (event) => {
    if (event.key === 'ArrowRight') step(1);
    if (event.key === 'ArrowLeft') step(-1);
  };
  hideTip();
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  const draw = () => chartHolder.replaceChildren(ridges(layer, place, Math.max(240, chartHolder.clientWidth)));
  draw();
  onWidth(chartHolder, draw);
  // The tip has to be inside the window that is on top.
  dialog.append(tip);
}
