// What every part of the page uses: the data, elements, numbers, marks of classes, the tip.

const data = JSON.parse(document.getElementById('audit-data').textContent);
const FLAGS = { dead: 1, rare: 2, always: 4, saturated: 8 };
const MISSING = '–';
const OTHERS = -1;

const byId = (id) => document.getElementById(id);

// Text is always set as text, never as markup: names in a record may hold anything.
function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function drawn(tag, attributes = {}, ...children) {
  return fill(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? '' : value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
  return node;
}

const known = (value) => typeof value === 'number' && Number.isFinite(value);

// Three significant figures, as the tables of all reports have them.
function number(value, figures = 3) {
  if (!known(value)) return MISSING;
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return value.toLocaleString('en-GB').replace('-', '−');
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) {
    const [mantissa, exponent] = value.toExponential(figures - 1).split('e');
    return `${Number(mantissa)}e${Number(exponent)}`.replaceAll('-', '−');
  }
  const digits = Math.max(0, figures - 1 - Math.floor(Math.log10(size || 1)));
  return value.toLocaleString('en-GB', {
    minimumFractionDigits: Math.min(digits, 12), maximumFractionDigits: Math.min(digits, 12), maximumSignificantDigits: undefined,
  }).replace('-', '−');
}

const signed = (value, figures = 3) => (known(value) && value > 0 ? '+' : '') + number(value, figures);

function percent(share) {
  if (!known(share)) return MISSING;
  const value = 100 * share;
  if (value > 0 && value < 1) return `${number(value, 1)} %`;
  if (value !== 100 && value >= 99.5) return `${Math.min(value, 99.9).toFixed(1)} %`;
  return `${value.toFixed(0)} %`;
}

const plural = (count, one, many = `${one}s`) => `${count.toLocaleString('en-GB')} ${count === 1 ? one : many}`;
const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

const noun = data.labels === 'clusters' ? 'cluster' : 'class';
const nouns = data.labels === 'clusters' ? 'clusters' : 'classes';
const className = (label) => (label === OTHERS ? 'all others' : data.classes[label] ?? String(label));
const manyClasses = data.classes.length > data.marks.most;

function markColour(label) {
  if (label === OTHERS || manyClasses || !data.classes.length) return 'var(--plain)';
  return data.marks.colours[label % data.marks.colours.length];
}

// The mark of a class at x, y: its shape and its colour both tell which it is.
function mark(label, x, y, size, attributes = {}) {
  const plain = label === OTHERS || manyClasses || !data.classes.length;
  const shape = plain ? 'circle' : data.marks.shapes[label % data.marks.shapes.length];
  const wide = size * 1.2;
  const paths = {
    circle: `M${x - size},${y}a${size},${size} 0 1,0 ${2 * size},0a${size},${size} 0 1,0 ${-2 * size},0z`,
    square: `M${x - size * 0.9},${y - size * 0.9}h${size * 1.8}v${size * 1.8}h${-size * 1.8}z`,
    diamond: `M${x},${y - wide}L${x + wide},${y}L${x},${y + wide}L${x - wide},${y}z`,
    up: `M${x},${y - wide}L${x + wide},${y + size}L${x - wide},${y + size}z`,
    down: `M${x},${y + wide}L${x + wide},${y - size}L${x - wide},${y - size}z`,
  };
  return drawn('path', { class: 'mark', d: paths[shape], fill: markColour(label), ...attributes });
}

function named(label) {
  const sign = drawn('svg', { width: 14, height: 14, 'aria-hidden': 'true' }, mark(label, 7, 7, 4.6));
  return element('span', { class: 'named', title: className(label) }, manyClasses ? null : sign, element('span', {}, className(label)));
}

const tip = byId('tip');

function showTip(text, event) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, window.innerWidth - box.width - 6);
  const below = event.clientY + 18;
  tip.style.left = `${Math.max(6, left)}px`;
  tip.style.top = `${below + box.height > window.innerHeight ? event.clientY - box.height - 10 : below}px`;
}

const hideTip = () => { tip.hidden = true; };

// Things that tell more under the pointer carry it as `data-tip`.
function listenForTips(root) {
  root.addEventListener('pointermove', (event) => {
    const told = event.target.closest?.('[data-tip]');
    if (told) showTip(told.dataset.tip, event); else hideTip();
  });
  root.addEventListener('pointerleave', hideTip);
}

// Redraw when the room for a picture changes; not for every pixel of a drag.
function onWidth(node, draw) {
  let last = 0;
  let waiting = 0;
  new ResizeObserver(() => {
    const width = Math.round(node.clientWidth);
    if (!width || width === last) return;
    last = width;
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(draw);
  }).observe(node);
}
