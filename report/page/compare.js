// The same request in two runs: its two lives, and which phase makes the difference; then the same for all requests of the two.

const MOST_POINTS = 3000;
const MOST_MOVED = 200;
const SYMBOLS = { queued: "circle", prefill: "square", decode: "diamond", preempted: "x", transfer: "cross" };
const CANCELS = 3;  // phases that differ by more than this factor of the whole difference cancel each other: shares say nothing then

// Differences by phase, b - a, largest first; `total` is that of the whole life.
function blame(a, b) {
  const parts = DATA.phases.map((phase) => ({ phase, a: Math.max(0, a.phases[phase]), b: Math.max(0, b.phases[phase]) })).map((part) => ({ ...part, by: part.b - part.a }));
  return { total: b.e2e - a.e2e, parts: parts.filter((part) => part.a || part.b).sort((p, q) => Math.abs(q.by) - Math.abs(p.by)) };
}

// The phase that differs most.
function mostly(a, b) {
  const top = blame(a, b).parts[0];
  return top && top.by ? top : { phase: "nothing", by: 0 };
}

function verdict(found) {
  if (found.total === 0) return "No difference.";
  const top = found.parts.find((part) => part.by * found.total > 0);
  const against = found.parts.find((part) => part.by * found.total < 0), text = `${duration(Math.abs(found.total))} ${found.total > 0 ? "longer" : "shorter"} in B`;
  const isMost = Math.abs(top.by) < CANCELS * Math.abs(found.total) || !against;
  return isMost ? `${text}, mostly ${top.phase} (${difference(top.by)}).` : `${text}: ${top.phase} ${difference(top.by)}, against it ${against.phase} ${difference(against.by)}.`;
}

function pairsOf(a, b) {
  requestsOf(b);
  return requestsOf(a).filter((row) => b.byRequest.has(row.request)).map((row) => [row, b.byRequest.get(row.request)]).filter(([x, y]) => x.e2e >= 0 && y.e2e >= 0);
}

function blameTable(found, unitRows) {
  const cell = (text) => el("td", { class: "number" }, text);
  const cancels = found.parts.some((part) => Math.abs(part.by) > CANCELS * Math.abs(found.total));
  const share = (by) => (found.total && !cancels ? short(Math.round(1000 * by / found.total) / 10 + 0) + " %" : "");
  return el("table", { id: "blame" + unitRows }, el("thead", {}, el("tr", {}, ...["phase", "A", "B", "B − A", "of the difference"].map((title, at) => el("th", { class: at ? "number" : "" }, title)))),
    el("tbody", {}, ...found.parts.map((part) => el("tr", {}, el("td", {}, part.phase), cell(duration(part.a)), cell(duration(part.b)), cell(difference(part.by)), cell(share(part.by))))));
}

// What the two runs were asked: other lengths or arrivals of the same number make a pair two requests.
function remarkOn(pairs, a, b) {
  const lengths = pairs.filter(([x, y]) => x.prompt_tokens !== y.prompt_tokens || x.output_tokens !== y.output_tokens).length;
  const arrivals = pairs.filter(([x, y]) => Math.abs(x.arrival - y.arrival) > 1).length, lines = [];
  if (lengths) lines.push(`${short(lengths)} of ${short(pairs.length)} pairs differ in prompt or output tokens: these are other requests, and the difference is not of the policies alone.`);
  if (arrivals) lines.push(`${short(arrivals)} of ${short(pairs.length)} pairs arrive at other times.`);
  for (const [name, run] of [["A", a], ["B", b]]) {
    if (run.policy_frac > 0) lines.push(`${name}: the KV policy takes ${short(100 * run.policy_frac)} % of step time, so about that share of prefill and decode.`);
  }
  return lines.join(" ");
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
    this.pair = el("div", { id: "compare-pair" });
    this.lives = el("div", { id: "compare-lives" });
    this.scatter = el("div", { id: "compare-scatter" });
    this.mean = el("div", { id: "compare-mean" });
    const moved = el("div", {});
    place.append(el("div", { class: "controls" }, this.a.field, this.b.field, el("label", {}, "request", this.number)), this.remark, this.pair, this.lives,
      el("h3", {}, "All requests that both runs completed"), this.mean, this.scatter, el("h3", {}, "Requests that moved most"), moved);
    this.moved = new DataTable(moved, this.columns(), [], { pageSize: 20, onRow: ([x]) => this.show(x.request) });
    this.reset();
  }

  // The run of the other result with the same label, or else the next run.
  other(run) {
    const twin = this.runs.findIndex((each) => each.result !== run.result && each.label === run.label);
    const far = this.runs.findIndex((each) => each.result !== run.result);
    return Math.max(0, twin >= 0 ? twin : far >= 0 ? far : Math.min(1, this.runs.length - 1));
  }

  columns() {
    const number = (title, value, text) => ({ title, number: true, value, text });
    const by = ([x, y]) => blame(x, y), most = ([x, y]) => mostly(x, y);
    return [number("request", ([x]) => x.request, ([x]) => String(x.request)), number("prompt", ([x]) => x.prompt_tokens, ([x]) => short(x.prompt_tokens)),
      number("output", ([x]) => x.output_tokens, ([x]) => short(x.output_tokens)), number("E2E in A", ([x]) => x.e2e, ([x]) => duration(x.e2e)),
      number("E2E in B", ([, y]) => y.e2e, ([, y]) => duration(y.e2e)), number("B − A", (pair) => by(pair).total, (pair) => difference(by(pair).total)),
      { title: "most of it", value: (pair) => most(pair).phase, text: (pair) => `${most(pair).phase} ${difference(most(pair).by)}` }];
  }

  reset() {
    [this.runA, this.runB] = [this.runs[Number(this.a.list.value)], this.runs[Number(this.b.list.value)]];
    this.pairs = pairsOf(this.runA, this.runB);
    this.remark.textContent = remarkOn(this.pairs, this.runA, this.runB);
    const moved = [...this.pairs].sort((p, q) => Math.abs(q[1].e2e - q[0].e2e) - Math.abs(p[1].e2e - p[0].e2e));
    this.moved.show(moved.filter(([x, y]) => x.e2e !== y.e2e).slice(0, MOST_MOVED));
    this.showAll(moved);
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
    const request = Number(this.number.value);
    const found = [this.runA, this.runB].map((run) => run.byRequest.get(request));
    if (this.number.value === "" || found.some((row) => !row)) {
      this.pair.replaceChildren(el("p", {}, this.number.value === "" ? "The two runs have completed no request in common." : `Request ${this.number.value} is not in the page for both runs.`));
      Plotly.purge(this.lives);
      return;
    }
    const [x, y] = found, lost = found.some((row) => row.e2e < 0), differs = blame(x, y);
    this.pair.replaceChildren(el("p", { class: "verdict" }, `Request ${request}: ` + (lost ? `A ${x.state}, B ${y.state}.` : verdict(differs))), lost ? "" : blameTable(differs, ""));
    drawLives(this.lives, [[`A: ${runName(this.runA)}`, x, 0], [`B: ${runName(this.runB)}`, y, 0]], "Time since arrival");
  }

  showAll(moved) {
    if (!moved.length) {
      this.mean.replaceChildren(el("p", {}, "None."));
      Plotly.purge(this.scatter);
      return;
    }
    const mean = (pick) => this.pairs.reduce((sum, pair) => sum + pick(pair), 0) / this.pairs.length;
    const sums = [0, 1].map((side) => ({ e2e: mean((pair) => pair[side].e2e), phases: Object.fromEntries(DATA.phases.map((phase) => [phase, mean((pair) => Math.max(0, pair[side].phases[phase]))])) }));
    const found = blame(...sums), differ = this.pairs.filter(([x, y]) => x.e2e !== y.e2e).length;
    this.mean.replaceChildren(el("p", { class: "verdict" }, `Mean of ${short(this.pairs.length)} requests, of which ${short(differ)} differ: ${verdict(found)}`), blameTable(found, "-mean"));
    const every = Math.ceil(this.pairs.length / MOST_POINTS), points = this.pairs.filter((_, at) => at % every === 0);
    const traces = ["nothing", ...DATA.phases].map((phase) => {
      const own = points.filter(([x, y]) => mostly(x, y).phase === phase);
      return { type: "scatter", mode: "markers", name: phase === "nothing" ? "no difference" : `mostly ${phase}`, x: own.map(([x]) => x.e2e / 1e6), y: own.map(([, y]) => y.e2e / 1e6), text: own.map(([x]) => `request ${x.request}`),
        marker: { color: LOOKS[phase] ? LOOKS[phase][0] : "#808080", size: 5, opacity: 0.7, symbol: SYMBOLS[phase] || "circle-open" }, hovertemplate: "%{text}: A %{x:.4~g} s, B %{y:.4~g} s<extra></extra>" };
    }).filter((trace) => trace.x.length);
    const most = Math.max(...this.pairs.map(([x, y]) => Math.max(x.e2e, y.e2e))) / 1e6, least = Math.min(...this.pairs.map(([x, y]) => Math.min(x.e2e, y.e2e))) / 1e6;
    const log = least > 0 && most > 30 * least;
    traces.push({ type: "scatter", mode: "lines", name: "equal", x: [least, most], y: [least, most], line: { color: "#a0a0a0", width: 1, dash: "dot" }, hoverinfo: "skip" });
    draw(this.scatter, traces, { height: 420, showlegend: true, xaxis: { title: { text: "End-to-end in A (s)" }, type: log ? "log" : "linear" }, yaxis: { title: { text: "End-to-end in B (s)" }, type: log ? "log" : "linear" } });
  }
}

function compareSection(runs) {
  const card = el("div", { class: "card" });
  section("compare", "Compare", card);
  const comparison = new Comparison(card, runs);
  return (run, row) => comparison.pick(run, row);
}
