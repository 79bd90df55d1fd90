// Tables that sort: a click or Enter on a heading, numbers as numbers, what is missing last.

function compare(a, b, rising) {
  const missingA = a === null || a === undefined || a === '' || Number.isNaN(a);
  const missingB = b === null || b === undefined || b === '' || Number.isNaN(b);
  if (missingA || missingB) return missingA - missingB;
  const order = typeof a === 'number' && typeof b === 'number' ? a - b : String(a).localeCompare(String(b), 'en', { numeric: true });
  return rising ? order : -order;
}

function turn(heading) {
  const rising = heading.getAttribute('aria-sort') !== 'ascending';
  for (const other of heading.parentElement.children) other.setAttribute('aria-sort', 'none');
  heading.setAttribute('aria-sort', rising ? 'ascending' : 'descending');
  return rising;
}

// A table that stands in the page as a whole; `then` is called when it has been sorted.
function sortInPlace(table, then) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    heading.querySelector('button').addEventListener('click', () => {
      const rising = turn(heading);
      const value = (row) => {
        const cell = row.cells[column];
        if (!('numeric' in cell.dataset)) return cell.dataset.sort;
        return cell.dataset.sort === '' ? null : Number(cell.dataset.sort);
      };
      const body = table.tBodies[0];
      body.append(...[...body.rows].sort((a, b) => compare(value(a), value(b), rising)));
      then();
    });
  });
}

// Buttons to go through what does not fit at once.
function pages(holder, total, size, at, go) {
  holder.replaceChildren();
  if (total <= size) return;
  const last = Math.ceil(total / size) - 1;
  holder.append(
    element('button', { type: 'button', disabled: at === 0, onclick: () => go(at - 1) }, 'Previous'),
    element('span', {}, `${at * size + 1} to ${Math.min(total, (at + 1) * size)} of ${total.toLocaleString('en-GB')}`),
    element('button', { type: 'button', disabled: at === last, onclick: () => go(at + 1) }, 'Next'),
  );
}

function choice(label, options, value, change, id) {
  const list = element('select', { id, onchange: (event) => change(event.target.value) });
  for (const [key, text] of options) list.append(element('option', { value: key, selected: key === value }, text));
  return element('label', {}, `${label} `, list);
}

function tagsOf(layer, place) {
  const { columns, partners } = layer;
  const unit = String(columns.unit[place]);
  const flags = columns.flags[place];
  const tags = [];
  const tag = (text, bad) => tags.push(element('span', { class: bad ? 'tag bad' : 'tag' }, text));
  if (flags & FLAGS.dead) tag('dead', true);
  else if (flags & FLAGS.rare) tag('rare', true);
  if (flags & FLAGS.saturated) tag('saturated', true);
  // Where the activation is never zero this is true of all units, and tells nothing.
  if (flags & FLAGS.always && 2 * columns.flags.filter((f) => f & FLAGS.always).length < columns.flags.length) tag('always active');
  for (const [kind, words] of [['mirrored', 'mirror of'], ['duplicate', 'duplicate of'], ['parallel', 'parallel to']]) {
    const others = partners[kind]?.[unit];
    if (others) tag(`${words} ${others.slice(0, 3).join(', ')}${others.length > 3 ? ' …' : ''}`);
  }
  return tags;
}

const UNIT_COLUMNS = [
  ['Unit', 'unit'],
  ['Active on', 'active', percent, 'share of the rows on which the unit is active'],
  ['Mean', 'mean', number, 'of z, its pre-activation'],
  ['Spread', 'std', number, 'standard deviation of z'],
  ['Skewness', 'skewness', number],
  ['z > 0 on', 'positive', percent, 'share of the rows on the positive side'],
  [`Nearest ${noun}`, 'nearest'],
  ['Distance', 'near', number, `of the nearest ${noun} mean from the hyperplane, in spreads of that ${noun}`],
  ['Passes through', 'through'],
  ['By chance', 'chance', percent, 'how often it would pass through one if it were moved to the row of a random sample'],
  ['Remarks', 'flags'],
];

// Units of the chosen layer: filter, sort, one page of rows at a time.
function unitTable(layer, open) {
  const { columns, partners } = layer;
  const places = columns.unit.map((_, place) => place);
  const flag = (bit) => (place) => (columns.flags[place] & bit) !== 0;
  const paired = (kind) => (place) => String(columns.unit[place]) in (partners[kind] ?? {});
  const filters = [
    ['all', 'all', () => true], ['dead', 'dead', flag(FLAGS.dead)], ['rare', 'rarely active', flag(FLAGS.rare)],
    ['saturated', 'saturated', flag(FLAGS.saturated)], ['mirrored', 'mirrored', paired('mirrored')],
    ['duplicate', 'duplicates', paired('duplicate')], ['through', 'passes through any', (p) => columns.through?.[p] === 1],
  ];
  if (columns.nearest) {
    data.classes.forEach((name, label) => filters.push([
      `class-${label}`, `passes through ${cut(name, 40)}`, (p) => columns.through[p] === 1 && columns.nearest[p] === label,
    ]));
  }
  const shown = UNIT_COLUMNS.filter(([, key]) => columns[key]?.some((value) => value !== null));
  const table = byId('unit-table');
  const state = { filter: 'all', order: places, page: 0 };
  const size = 25;
  const head = element('tr');
  for (const [label, key, , told] of shown) {
    const heading = element('th', { scope: 'col', 'aria-sort': 'none', class: key === 'flags' || key === 'nearest' ? 'text' : null });
    heading.append(element('button', {
      type: 'button', class: 'sort', title: told, onclick: () => {
        const rising = turn(heading);
        const value = key === 'nearest' ? (p) => (columns.nearest[p] < 0 ? null : columns.nearest[p]) : (p) => columns[key][p];
        state.order = [...state.order].sort((a, b) => compare(value(a), value(b), rising));
        draw(0);
      },
    }, label));
    head.append(heading);
  }
  const body = element('tbody');
  table.replaceChildren(element('thead', {}, head), body);
  const allowed = (key) => filters.find(([name]) => name === key)[2];
  const options = filters.filter(([key, , test]) => key === 'all' || places.some(test))
    .map(([key, label, test]) => [key, key === 'all' ? label : `${label} (${places.filter(test).length})`]);
  const count = element('span');
  byId('unit-controls').replaceChildren(choice('Show', options, 'all', (key) => { state.filter = key; draw(0); }, 'unit-filter'), count);

  function cell(place, key, format) {
    const value = columns[key][place];
    if (key === 'nearest') return element('td', { class: 'text' }, value < 0 ? MISSING : named(value));
    if (key === 'through') return element('td', { class: value === 1 ? null : 'none' }, ['no', 'yes', 'near most'][value]);
    if (key === 'flags') return element('td', { class: 'text' }, tagsOf(layer, place));
    return element('td', {}, format(value));
  }

  function draw(page) {
    const rows = state.order.filter(allowed(state.filter));
    state.page = page;
    body.replaceChildren(...rows.slice(page * size, (page + 1) * size).map((place) => {
      const unit = columns.unit[place];
      const opened = (event) => { event.stopPropagation(); open(place, rows); };
      const first = element('th', { scope: 'row' }, element('button', { type: 'button', onclick: opened, 'aria-label': `Open unit ${unit}` }, String(unit)));
      return element('tr', { onclick: opened, 'data-unit': unit }, first, shown.slice(1).map(([, key, format]) => cell(place, key, format)));
    }));
    if (!rows.length) body.append(element('tr', {}, element('td', { colspan: shown.length, class: 'text absent' }, 'No such unit.')));
    const left = layer.count > columns.unit.length
      ? ` This page carries ${columns.unit.length.toLocaleString('en-GB')} of the layer’s ${layer.count.toLocaleString('en-GB')} units, those with most to tell; audit.safetensors has them all.` : '';
    count.textContent = `${plural(rows.length, 'unit')}.${left}`;
    pages(byId('unit-pages'), rows.length, size, page, draw);
  }
  state.order.sort((a, b) => columns.unit[a] - columns.unit[b]);
  head.cells[0].setAttribute('aria-sort', 'ascending');
  draw(0);
}
