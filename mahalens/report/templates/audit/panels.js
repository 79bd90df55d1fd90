// Whitening and perturbation of the chosen layer.

const factList = (rows) => element('dl', { class: 'facts' }, rows.map(([name, text, told]) => element('div', { title: told }, element('dt', {}, name), element('dd', {}, text))));

function whiteningPanel(layer, holder) {
  const found = layer.whitening;
  holder.replaceChildren();
  holder.append(element('h3', {}, 'Does the layer whiten its input?'));
  if (!found) { holder.append(element('p', { class: 'about' }, 'Not measured for this layer.')); return () => {}; }
  const picture = element('div', { id: 'spectrum' });
  const all = [...found.spectrum, ...found.recovered];
  holder.append(
    element('p', { class: 'about' }, 'Eigenvalues of the input’s covariance, and of the covariance that the weights stand for. For a whitening layer the lines run side by side.'),
    element('div', { class: 'class-legend' }, lineKey('var(--distance)', 'input'), lineKey('var(--intensity)', 'recovered from the weights', true)),
    picture,
  );
  if (found.unseen) holder.append(element('p', { class: 'about' }, `${plural(found.unseen, 'direction')} of the input ${found.unseen === 1 ? 'is' : 'are'} seen by no unit and missing from the recovered line.`));
  holder.append(factList([
    ['Sphericity', number(found.sphericity), 'how far the output is from white: 0 is exact'], ['Isotropy', number(found.isotropy), '1 for a whitening'],
    ['Cosine with the precision', number(found.precision_cosine), 'between WᵀW and the inverse covariance'], ['Error against the precision', number(found.precision_error)],
    ['Scale of the precision', number(found.precision_scale)], ['Effective rank, input', number(found.input_rank)], ['Effective rank, output', number(found.output_rank)],
    ['Shrinkage', number(found.shrinkage), 'weight of the identity in the estimated covariance'], ['Rows', number(found.rows)],
  ]));
  const draw = () => {
    if (!all.length) { picture.replaceChildren(element('p', {}, 'No eigenvalue is above zero.')); return; }
    const values = all.map(([, v]) => v);
    const middles = [found.spectrum[0]?.[1], found.recovered[found.recovered.length >> 1]?.[1]].filter(known);
    // Rounding leaves eigenvalues that mean nothing; they shall not set the scale.
    const high = Math.min(Math.max(...values), 1e3 * Math.max(...middles));
    const low = Math.max(Math.min(...values), 1e-7 * Math.min(...middles));
    const seen = (points) => points.filter(([, value]) => value >= low && value <= high);
    const last = Math.max(2, ...all.map(([place]) => place));
    picture.replaceChildren(chart({
      width: Math.max(260, picture.clientWidth), height: 250, title: 'Spectrum of the input against the spectrum recovered from the weights',
      lines: [{ points: seen(found.spectrum), colour: 'var(--distance)' }, { points: seen(found.recovered), colour: 'var(--intensity)', dashed: true }],
      x: { from: 1, to: last, ticks: ticks(1, last, 5).filter(Number.isInteger), format: (v) => number(v), label: 'eigenvalue, largest first' },
      y: { from: low / 1.5, to: high * 1.5, log: true, ticks: powers(low / 1.5, high * 1.5), format: power, tell: number },
    }));
  };
  draw();
  return draw;
}

const PERTURBED = [
  ['scale', 'Intensity scaled', 'factor'],
  ['clip', 'Intensity clipped', 'at this share of its range'],
  ['offset', 'Distance offset', 'by this share of its range'],
];

function tellIndex(index) {
  if (!known(index)) return 'nothing was lost under either, so there is no index';
  if (Math.abs(index) < 0.1) return 'relies on both alike';
  return index > 0 ? 'relies more on distances' : 'relies more on intensities';
}

function perturbationPanel(layer, holder) {
  const found = layer.perturbation;
  holder.replaceChildren();
  holder.append(element('h3', {}, 'What does accuracy depend on?'));
  if (!found) { holder.append(element('p', { class: 'about' }, 'Perturbation was not measured for this layer.')); return () => {}; }
  const picture = element('div', { id: 'perturbation' });
  holder.append(
    element('p', { class: 'about' }, `Accuracy when this layer’s activations are changed. Index ${signed(found.index)}: ${tellIndex(found.index)}.`),
    element('div', { class: 'class-legend' }, lineKey('var(--intensity)', 'intensity changed'), lineKey('var(--distance)', 'distance changed'), lineKey('var(--ink)', `unchanged, ${percent(found.baseline)}`, true)),
    picture,
  );
  const draw = () => {
    const room = Math.max(260, picture.clientWidth);
    const columns = room > 620 ? 3 : 1;
    const grid = element('div', { style: `display: grid; gap: 6px 12px; grid-template-columns: repeat(${columns}, minmax(0, 1fr))` });
    for (const [key, title, label] of PERTURBED) {
      const points = found[key].filter(([, accuracy]) => known(accuracy));
      if (!points.length) continue;
      const levels = points.map(([level]) => level);
      const log = key === 'scale' && Math.min(...levels) > 0;
      let [from, to] = [Math.min(...levels), Math.max(...levels)];
      if (from === to) { from -= log ? from / 2 : 1; to += 1; }
      const share = (v) => `${Number((100 * v).toPrecision(3))} %`.replace('-', '−');
      grid.append(element('div', {}, element('strong', {}, title), chart({
        width: Math.floor(room / columns) - (columns > 1 ? 10 : 0), height: 170, title: `${title}: accuracy by level`, level: found.baseline,
        lines: [{ points, colour: key === 'offset' ? 'var(--distance)' : 'var(--intensity)', dots: true }],
        x: { from, to, log, ticks: log ? powers(from, to) : ticks(from, to, 4), format: share, label },
        y: { from: 0, to: 1, ticks: [0, 0.5, 1], format: (v) => `${100 * v} %`, tell: percent },
      })));
    }
    picture.replaceChildren(grid);
  };
  draw();
  return draw;
}
