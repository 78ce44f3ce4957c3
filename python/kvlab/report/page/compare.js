// The same request in two runs: its two lives, and which phase makes the difference; then the same for all requests of the two.

const MOST_POINTS = 3000;
const MOST_MOVED = 200;
const MOST_COMPARED = 20;
const SYMBOLS = { queued: "circle", prefill: "square", decode: "diamond", preempted: "x", transfer: "cross", policy: "triangle-up" };
const CANCELS = 3;  // phases that differ by more than this factor of the whole difference cancel each other: shares say nothing then

// Differences by phase, b - a, largest first; `total` is that of the whole life.
function blame(a, b) {
  const parts = DATA.phases.map((phase) => ({ phase, a: Math.max(0, a.phases[phase]), b: Math.max(0, b.phases[phase]) }));
  for (const part of parts) part.by = part.b - part.a;
  return { total: b.e2e - a.e2e, parts: parts.filter((part) => part.a || part.b).sort((p, q) => Math.abs(q.by) - Math.abs(p.by)) };
}

// The phase that differs most.
function mostly(a, b) {
  const top = blame(a, b).parts[0];
  return top && top.by ? top : { phase: "nothing", by: 0 };
}

function verdict(found) {
  if (found.total === 0) return "No difference.";
  const text = `${duration(Math.abs(found.total))} ${found.total > 0 ? "longer" : "shorter"} in B`;
  const top = found.parts.find((part) => part.by * found.total > 0), against = found.parts.find((part) => part.by * found.total < 0);
  if (!against || Math.abs(top.by) < CANCELS * Math.abs(found.total)) return `${text}, mostly ${top.phase} (${difference(top.by)}).`;
  return `${text}: ${top.phase} ${difference(top.by)}, against it ${against.phase} ${difference(against.by)}.`;
}

function pairsOf(a, b) {
  requestsOf(b);
  const pairs = requestsOf(a).filter((row) => b.byRequest.has(row.request)).map((row) => [row, b.byRequest.get(row.request)]);
  return pairs.filter(([x, y]) => x.e2e >= 0 && y.e2e >= 0);
}

function blameTable(found, id) {
  const cell = (text) => el("td", { class: "number" }, text);
  const cancels = found.parts.some((part) => Math.abs(part.by) > CANCELS * Math.abs(found.total));
  const share = (by) => (found.total && !cancels ? short(Math.round(1000 * by / found.total) / 10 + 0) + " %" : "");
  const titles = ["phase", "A", "B", "B − A", "of the difference"].map((title, at) => el("th", { class: at ? "number" : "" }, title));
  const rows = found.parts.map((part) => el("tr", {}, el("td", {}, part.phase), cell(duration(part.a)), cell(duration(part.b)),
    cell(difference(part.by)), cell(share(part.by))));
  return el("table", { id }, el("thead", {}, el("tr", {}, ...titles)), el("tbody", {}, ...rows));
}

// Other lengths or arrivals of the same number: the two runs were not asked the same.
function remarkOn(pairs, a, b) {
  const lengths = pairs.filter(([x, y]) => x.prompt_tokens !== y.prompt_tokens || x.output_tokens !== y.output_tokens).length;
  const arrivals = pairs.filter(([x, y]) => Math.abs(x.arrival - y.arrival) > 1).length, lines = [];
  const count = (some) => `${short(some)} of ${short(pairs.length)} pairs`;
  if (lengths) lines.push(`${count(lengths)} differ in prompt or output tokens: the difference is not of the policies alone.`);
  if (arrivals) lines.push(`${count(arrivals)} arrive at other times.`);
  for (const [name, run] of [["A", a], ["B", b]]) {
    const share = short(100 * run.policy_frac);
    if (!(run.policy_frac > 0) || run.lives.has_policy_times) continue;
    lines.push(`${name}: the KV policy takes ${share} % of step time, so about that share of prefill and decode.`);
  }
  return lines.join(" ");
}

function scatterTraces(pairs) {
  const every = Math.ceil(pairs.length / MOST_POINTS), points = pairs.filter((_, at) => at % every === 0);
  return ["nothing", ...DATA.phases].map((phase) => {
    const own = points.filter(([x, y]) => mostly(x, y).phase === phase);
    return {
      type: "scatter", mode: "markers", name: phase === "nothing" ? "no difference" : `mostly ${phase}`,
      x: own.map(([x]) => x.e2e / 1e6), y: own.map(([, y]) => y.e2e / 1e6), text: own.map(([x]) => `request ${x.request}`),
      marker: { color: LOOKS[phase] ? LOOKS[phase][0] : "#808080", size: 5, opacity: 0.7, symbol: SYMBOLS[phase] || "circle-open" },
      hovertemplate: "%{text}: A %{x:.4~g} s, B %{y:.4~g} s<extra></extra>",
    };
  }).filter((trace) => trace.x.length);
}

function drawScatter(place, pairs) {
  let most = 0, least = Infinity;
  for (const row of pairs.flat()) {
    most = Math.max(most, row.e2e / 1e6);
    least = Math.min(least, row.e2e / 1e6);
  }
  const type = least > 0 && most > 30 * least ? "log" : "linear", ends = [least, most];
  const line = { color: "#a0a0a0", width: 1, dash: "dot" };
  const equal = { type: "scatter", mode: "lines", name: "equal", x: ends, y: ends, line, hoverinfo: "skip" };
  const axis = (name) => ({ title: { text: `End-to-end in ${name} (s)` }, type });
  draw(place, [...scatterTraces(pairs), equal], { height: 420, showlegend: true, xaxis: axis("A"), yaxis: axis("B") });
}

function meanOf(pairs, side) {
  const mean = (pick) => pairs.reduce((sum, pair) => sum + pick(pair[side]), 0) / pairs.length;
  const phases = DATA.phases.map((phase) => [phase, mean((row) => Math.max(0, row.phases[phase]))]);
  return { e2e: mean((row) => row.e2e), phases: Object.fromEntries(phases) };
}

class Comparison {
  constructor(place, runs) {
    this.runs = runs;
    const names = runs.map((run, at) => [at, runName(run)]);
    this.a = choice("A", "compare-a", names, () => this.reset());
    this.b = choice("B", "compare-b", names, () => this.reset());
    this.b.list.value = String(this.other(runs[0]));
    this.number = el("input", { type: "number", id: "compare-request", min: "0", oninput: () => this.showPair() });
    this.remark = el("p", { class: "note" });
    for (const part of ["pair", "lives", "mean", "scatter", "table"]) this[part] = el("div", { id: "compare-" + part });
    place.append(el("div", { class: "controls" }, this.a.field, this.b.field, el("label", {}, "request", this.number)), this.remark);
    place.append(this.pair, this.lives, el("h3", {}, "All requests that both runs completed"), this.mean, this.scatter);
    place.append(el("h3", {}, `Requests that moved most, at most ${MOST_MOVED}`), this.table);
    this.moved = new DataTable(this.table, this.columns(), [], { pageSize: 20, onRow: ([x]) => this.show(x.request) });
    this.reset();
  }

  // The run of the other result with the same label, or its first; else another run of the same seed, or any.
  other(run) {
    const tests = [
      (each) => each.result !== run.result && each.label === run.label, (each) => each.result !== run.result,
      (each) => each !== run && each.seed === run.seed, (each) => each !== run,
    ];
    const found = this.runs.filter(tests.find((test) => this.runs.some(test)));
    // Of several the one whose requests took least like those of `run`; runs past a few are not looked at.
    const mean = (each) => requestsOf(each).reduce((sum, row) => sum + Math.max(0, row.e2e), 0) / Math.max(1, requestsOf(each).length);
    const far = (each) => Math.abs(mean(each) - mean(run));
    const near = found.slice(0, MOST_COMPARED).reduce((best, each) => (far(each) > far(best) ? each : best));
    return this.runs.indexOf(near);
  }

  columns() {
    const number = (title, value, text) => ({ title, number: true, value, text: (pair) => (text || short)(value(pair)) });
    const most = ([x, y]) => mostly(x, y);
    return [
      number("request", ([x]) => x.request, String), number("prompt", ([x]) => x.prompt_tokens), number("output", ([x]) => x.output_tokens),
      number("E2E in A", ([x]) => x.e2e, duration), number("E2E in B", ([, y]) => y.e2e, duration),
      number("B − A", ([x, y]) => y.e2e - x.e2e, difference),
      { title: "most of it", value: (pair) => most(pair).phase, text: (pair) => `${most(pair).phase} ${difference(most(pair).by)}` },
    ];
  }

  reset() {
    [this.runA, this.runB] = [this.runs[Number(this.a.list.value)], this.runs[Number(this.b.list.value)]];
    this.pairs = pairsOf(this.runA, this.runB);
    this.remark.textContent = remarkOn(this.pairs, this.runA, this.runB);
    const moved = [...this.pairs].sort((p, q) => Math.abs(q[1].e2e - q[0].e2e) - Math.abs(p[1].e2e - p[0].e2e));
    this.moved.show(moved.filter(([x, y]) => x.e2e !== y.e2e).slice(0, MOST_MOVED));
    this.showAll();
    if (!this.pairs.some(([x]) => String(x.request) === this.number.value)) this.number.value = moved.length ? moved[0][0].request : "";
    this.showPair();
  }

  show(request) {
    this.number.value = request;
    this.showPair();
  }

  pick(run, row) {
    if (run !== this.runA && run !== this.runB) {
      this.a.list.value = String(this.runs.indexOf(run));
      if (this.b.list.value === this.a.list.value) this.b.list.value = String(this.other(run));
      this.number.value = row.request;
      this.reset();
    }
    this.show(row.request);
  }

  showPair() {
    const text = this.number.value, [x, y] = [this.runA, this.runB].map((run) => run.byRequest.get(Number(text)));
    if (text === "" || !x || !y) {
      const missing = text === "" ? "The two runs completed no request in common." : `Request ${text} is not in the page for both runs.`;
      this.pair.replaceChildren(el("p", {}, missing));
      Plotly.purge(this.lives);
      return;
    }
    const lost = x.e2e < 0 || y.e2e < 0, found = blame(x, y);
    this.pair.replaceChildren(el("p", { class: "verdict" }, `Request ${text}: ` + (lost ? `A ${x.state}, B ${y.state}.` : verdict(found))));
    if (!lost) this.pair.append(blameTable(found, "blame"));
    drawLives(this.lives, [[`A: ${runName(this.runA)}`, x, 0], [`B: ${runName(this.runB)}`, y, 0]], "Time since arrival");
  }

  showAll() {
    if (!this.pairs.length) {
      this.mean.replaceChildren(el("p", {}, "None."));
      Plotly.purge(this.scatter);
      return;
    }
    const found = blame(meanOf(this.pairs, 0), meanOf(this.pairs, 1)), differ = this.pairs.filter(([x, y]) => x.e2e !== y.e2e).length;
    const text = `Mean of ${short(this.pairs.length)} requests, of which ${short(differ)} differ: ${verdict(found)}`;
    this.mean.replaceChildren(el("p", { class: "verdict" }, text), blameTable(found, "blame-mean"));
    drawScatter(this.scatter, this.pairs);
  }
}

function compareSection(runs) {
  const card = el("div", { class: "card" });
  section("compare", "Compare", card);
  const comparison = new Comparison(card, runs);
  return (run, row) => comparison.pick(run, row);
}
