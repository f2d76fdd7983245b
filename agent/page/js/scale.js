// From times to shares of a width and back, with times in which nobody drove the session made narrow.

const FOLDED = 0.04;

/** Time to a share of the width. Long stretches in which nobody drove the session are drawn narrow when `fold` is on. */
function scaleOf(m, fold) {
  const gaps = fold
    ? m.absences.map(([start, end]) => [start, end ?? m.end]).filter(([start, end]) => end - start > 0.1 * m.end)
    : [];
  const cut = gaps.reduce((sum, [start, end]) => sum + end - start, 0);
  const wide = (1 - FOLDED * gaps.length) / Math.max(1e-9, m.end - cut);
  const pieces = [];
  let at = 0,
    share = 0;
  for (const [start, end] of gaps) {
    pieces.push([at, start, share, wide]);
    share += (start - at) * wide;
    pieces.push([start, end, share, FOLDED / (end - start)]);
    share += FOLDED;
    at = end;
  }
  pieces.push([at, m.end, share, wide]);
  return {
    gaps,
    to: (time) => {
      const t = clamp(time, 0, m.end),
        p =
          pieces[
            Math.max(
              0,
              lastWhere(pieces, (piece) => piece[0] <= t),
            )
          ];
      return p[2] + (t - p[0]) * p[3];
    },
    back: (x) => {
      const p =
        pieces[
          Math.max(
            0,
            lastWhere(pieces, (piece) => piece[2] <= x),
          )
        ];
      return Math.min(p[1], p[0] + (x - p[2]) / p[3]);
    },
    inGap: (time) => gaps.some(([start, end]) => time > start && time < end),
    span: m.end - cut,
  };
}
