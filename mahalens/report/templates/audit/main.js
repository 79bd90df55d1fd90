// Choosing a layer, and everything that follows from it.

const layerTable = byId('layer-table');
const layerSelect = byId('layer-select');
let redraw = [];

const LAYERS = 40;

// The layers of one verdict or of all; of very many the first ones, with a button for the rest.
function layerFilter() {
  const state = { word: null, all: data.layers.length <= LAYERS };
  const holder = byId('layer-filter');
  const chips = [{ word: null, kind: '', meaning: '', symbol: '', count: data.layers.length }, ...data.words];

  function show() {
    let matching = 0;
    for (const row of layerTable.tBodies[0].rows) {
      const fits = state.word === null || data.layers[row.dataset.layer].verdict.word === state.word;
      row.classList.toggle('other', !fits);
      row.classList.toggle('beyond', fits && !state.all && matching >= LAYERS);
      matching += fits;
    }
    const shown = state.all ? matching : Math.min(matching, LAYERS);
    const kind = state.word === null ? '' : ` ${state.word}`;
    const count = byId('layer-count');
    count.replaceChildren(shown < matching
      ? `Showing the first ${shown} of ${matching.toLocaleString('en-GB')}${kind} layers. ` : `Showing ${state.word === null ? 'all ' : ''}${plural(matching, `${kind} layer`.trim())}.`);
    if (shown < matching) count.append(element('button', { type: 'button', class: 'plain-button', onclick: () => { state.all = true; show(); } }, `Show all ${matching.toLocaleString('en-GB')}`));
    for (const [place, button] of [...holder.querySelectorAll('button')].entries()) button.setAttribute('aria-pressed', String(chips[place].word === state.word));
  }
  if (data.words.length > 1) {
    holder.append(...chips.map(({ word, kind, symbol, count, meaning }) => element('button', {
      type: 'button', class: `chip verdict ${kind}`, title: meaning || null, onclick: () => { state.word = word; show(); },
    }, `${symbol} ${cut(word ?? 'all', 50)} ${count.toLocaleString('en-GB')}`)));
  }
  show();
  return show;
}

function verdictBox(layer) {
  const { verdict } = layer;
  const badge = element('span', { class: `verdict ${verdict.kind}`, title: data.words.find(({ word }) => word === verdict.word)?.meaning || null }, element('span', { 'aria-hidden': 'true' }, verdict.symbol), ` ${verdict.word}`);
  const box = byId('layer-verdict');
  box.replaceChildren(element('p', { class: 'answer' }, badge, element('span', {}, verdict.reason)), factList(layer.facts));
  if (!layer.suggestions.length) return;
  box.append(element('p', { class: 'todo' }, 'What to do about it'), element('ul', {}, layer.suggestions.map((s) => element('li', {},
    element('strong', {}, `${s.action[0]?.toUpperCase() ?? ''}${s.action.slice(1)}`), s.count ? ` (${s.count === 1 ? 'unit' : 'units'} ${s.units.slice(0, 12).join(', ')}${s.count > 12 ? `, … ${s.count.toLocaleString('en-GB')} in all` : ''})` : '',
    `: ${s.effect} `, s.exact ? element('span', { class: 'exact', title: 'mahalens.prune(model, record, data) does it and leaves the outputs as they are' }, 'exact: prune does it') : null))));
}

function notesOf(layer) {
  const holder = byId('layer-notes');
  holder.replaceChildren();
  const { silent } = layer;
  if (silent) {
    const by = silent.by_class.length ? `, most of them in ${silent.by_class.slice(0, 3).map(([name, share]) => `${noun} ${cut(name, 24)} (${percent(share)})`).join(', ')}` : '';
    const first = silent.samples.length ? ` First such samples: ${silent.samples.join(', ')}.` : '';
    holder.append(element('p', {}, `No unit of this layer responds to ${percent(silent.share)} of the rows${by}.${first}`));
  }
  if (layer.notes.length) holder.append(element('ul', {}, layer.notes.map((note) => element('li', {}, note))));
}

function caption(layer) {
  const { share, chance } = layer.verdict;
  const told = known(share) && layer.columns.class_mean
    ? `${percent(share)} of the live units pass through a ${noun}${known(chance) ? `, ${percent(chance)} would by chance` : ''}. ` : '';
  if (!layer.columns.class_mean) return `${told}Each row is a unit, the vertical line its hyperplane, the mark the mean of the data: there are no ${nouns} to tell apart here. A mark on the line: the unit measures distance from the mean.`;
  const many = manyClasses ? ` With ${data.classes.length.toLocaleString('en-GB')} ${nouns}, each row has only those nearest the line and the outermost ones.` : '';
  return `${told}Each row is a unit, the vertical line its hyperplane, each mark the mean of a ${noun}. A mark on the line: the unit measures distance from that ${noun}. All marks on one side: it only tells how strong something is.${many}`;
}

function chooseLayer(place, move) {
  const layer = data.layers[place];
  if (!layer) return;
  byId('layer').hidden = false;
  byId('layer-title').replaceChildren(`Layer ${layer.name || '(no name)'}`, element('small', {}, layer.kind));
  layerSelect.value = String(place);
  for (const row of layerTable.tBodies[0].rows) {
    const chosen = Number(row.dataset.layer) === place;
    row.classList.toggle('chosen', chosen);
    if (chosen) row.setAttribute('aria-current', 'true'); else row.removeAttribute('aria-current');
  }
  verdictBox(layer);
  notesOf(layer);
  byId('picture-caption').textContent = caption(layer);
  const open = (at, among) => openNode(layer, at, among);
  unitTable(layer, open);
  redraw = [stripPicture(layer, open), whiteningPanel(layer, byId('whitening-panel')), perturbationPanel(layer, byId('perturbation-panel'))];
  try { history.replaceState(null, '', `#layer-${place + 1}`); } catch { /* some viewers do not let a page do that */ }
  if (move) { byId('layer').scrollIntoView({ block: 'start' }); byId('layer-title').focus({ preventScroll: true }); }
}

if (layerTable) {
  sortInPlace(layerTable, layerFilter());
  layerTable.tBodies[0].addEventListener('click', (event) => {
    const row = event.target.closest('tr');
    if (row) chooseLayer(Number(row.dataset.layer), true);
  });
  data.layers.forEach((layer, place) => layerSelect.append(element('option', { value: place }, cut(layer.name || '(no name)', 60))));
  layerSelect.addEventListener('change', () => chooseLayer(Number(layerSelect.value), false));
  const asked = /^#layer-(\d+)$/.exec(location.hash);
  chooseLayer(asked && data.layers[asked[1] - 1] ? asked[1] - 1 : 0, false);
  onWidth(byId('layer'), () => redraw.forEach((draw) => draw()));
  listenForTips(byId('layer'));
  listenForTips(dialog);
  dialog.addEventListener('close', () => { hideTip(); document.body.append(tip); });
  // A click beside the window closes it.
  dialog.addEventListener('click', (event) => { if (event.target === dialog) dialog.close(); });
}
