// Scales and small line charts.

const linear = (from, to, left, right) => (value) => left + ((value - from) / (to - from || 1)) * (right - left);

// Round places between two ends, about `wanted` of them.
function ticks(from, to, wanted = 5) {
  const raw = (to - from) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const found = [];
  for (let k = Math.ceil(from / step - 1e-9); k * step <= to + step * 1e-6; k += 1) found.push(Number((k * step).toPrecision(12)));
  return found;
}

// Whole powers of ten between two ends, thinned when there are many.
function powers(from, to, most = 6) {
  const low = Math.ceil(Math.log10(from) - 1e-9);
  const high = Math.floor(Math.log10(to) + 1e-9);
  const step = Math.max(1, Math.ceil((high - low + 1) / most));
  const found = [];
  for (let k = low; k <= high; k += step) found.push(10 ** k);
  return found;
}

const SUPERSCRIPT = '⁰¹²³⁴⁵⁶⁷⁸⁹';
const superscript = (exponent) => (exponent < 0 ? '⁻' : '') + [...String(Math.abs(exponent))].map((d) => SUPERSCRIPT[d]).join('');
const power = (value) => (value >= 0.01 && value <= 1000 ? String(Number(value.toPrecision(3))) : `10${superscript(Math.round(Math.log10(value)))}`);

/* Lines over an x axis: {width, height, lines: [{points, colour, label, dashed, dots}], x, y, level}.
   x and y: {from, to, log, ticks, format, label}. */
function chart({ width, height, lines, x, y, level, title }) {
  const edge = { left: 46, right: 20, top: 10, bottom: 40 };
  const across = (v) => linear(x.log ? Math.log10(x.from) : x.from, x.log ? Math.log10(x.to) : x.to, edge.left, width - edge.right)(x.log ? Math.log10(v) : v);
  const up = (v) => linear(y.log ? Math.log10(y.from) : y.from, y.log ? Math.log10(y.to) : y.to, height - edge.bottom, edge.top)(y.log ? Math.log10(v) : v);
  const picture = drawn('svg', { width, height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': title });
  for (const value of y.ticks) {
    picture.append(
      drawn('line', { class: 'axis', x1: edge.left, x2: width - edge.right, y1: up(value), y2: up(value) }),
      drawn('text', { class: 'soft', x: edge.left - 6, y: up(value) + 4, 'text-anchor': 'end' }, y.format(value)),
    );
  }
  for (const value of x.ticks) {
    picture.append(
      drawn('line', { class: 'axis', x1: across(value), x2: across(value), y1: height - edge.bottom, y2: height - edge.bottom + 4 }),
      drawn('text', { class: 'soft', x: across(value), y: height - edge.bottom + 17, 'text-anchor': 'middle' }, x.format(value)),
    );
  }
  picture.append(drawn('text', { class: 'soft', x: (edge.left + width - edge.right) / 2, y: height - 5, 'text-anchor': 'middle' }, x.label));
  if (known(level)) {
    picture.append(drawn('line', { x1: edge.left, x2: width - edge.right, y1: up(level), y2: up(level), stroke: 'var(--ink)', 'stroke-dasharray': '5 3' }));
  }
  for (const line of lines) {
    const places = line.points.filter(([a, b]) => known(b) && (!x.log || a > 0)).map(([a, b]) => [across(a), up(b), a, b]);
    picture.append(drawn('polyline', {
      class: 'line', points: places.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join(' '), stroke: line.colour, 'stroke-dasharray': line.dashed ? '6 4' : null,
    }));
    if (line.dots) {
      for (const [a, b, v, w] of places) {
        picture.append(drawn('circle', { cx: a, cy: b, r: 3.5, fill: line.colour, class: 'mark', 'data-tip': `${x.label} ${x.format(v)}: ${y.tell(w)}` }));
      }
    }
  }
  return picture;
}

const lineKey = (colour, text, dashed) => element('span', { class: 'key' },
  drawn('svg', { width: 26, height: 10, 'aria-hidden': 'true' }, drawn('line', { x1: 0, x2: 26, y1: 5, y2: 5, stroke: colour, 'stroke-width': 2.5, 'stroke-dasharray': dashed ? '6 4' : null })), text);
