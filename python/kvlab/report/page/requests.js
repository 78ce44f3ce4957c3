// The request explorer: filters, a table, and the lives of the requests on the page of the table.

const STATES = ["completed", "rejected", "unfinished", "other"];
const COUNTS = ["replica", "prompt_tokens", "output_tokens", "hit_tokens", "preemptions", "recomputed_tokens"];
const MOST_LIVES = 40;  // drawn at once

// Rows of a run, made when they are first asked for.
function requestsOf(run) {
  if (run.rows) return run.rows;
  const columns = run.lives.columns, at = (name, i, missing) => (columns[name] ? columns[name][i] : missing);
  run.rows = columns.request.map((request, i) => {
    const row = { request, arrival: columns.arrival_us[i], phases: {}, segments: run.lives.segments[request] || null };
    for (const phase of DATA.phases) row.phases[phase] = at(phase + "_us", i, 0);
    row.policyIn = { prefill: at("prefill_policy_us", i, 0), decode: at("decode_policy_us", i, 0) };
    for (const name of COUNTS) row[name] = at(name, i, 0);
    for (const name of ["session", "client", "class"]) row[name] = String(at(name, i, ""));
    row.state = STATES[at("state", i, 0)];
    const done = row.state === "completed";
    row.ttft = done ? at("ttft_us", i, 0) : -1;
    row.e2e = done ? DATA.phases.reduce((sum, phase) => sum + Math.max(0, row.phases[phase]), 0) : -1;
    row.tpot = done && row.output_tokens > 1 ? (row.e2e - row.ttft) / (row.output_tokens - 1) : -1;
    return row;
  });
  run.byRequest = new Map(run.rows.map((row) => [row.request, row]));
  return run.rows;
}

// Time in a phase, the policy's work in it included.
const wholeOf = (row, phase) => row.phases[phase] + (row.policyIn[phase] || 0);

// [phase, begin, end] in µs after the arrival, the policy's work not yet taken out.
function piecesOf(row) {
  if (row.segments) return row.segments.map(([phase, begin, end]) => [DATA.phases[phase], begin - row.arrival, end - row.arrival]);
  const pieces = [];
  let now = 0;
  for (const phase of DATA.phases.filter((each) => each !== "policy")) {
    const length = wholeOf(row, phase);
    if (length > 0) pieces.push([phase, now, now + length]);
    now += Math.max(0, length);
  }
  return pieces;
}

// [phase, begin, end, of] in µs after the arrival. The policy's work is spread over the steps of a phase: here it is at the end of each
// piece, by the piece's share of the phase, and `of` names the phase.
function lifeOf(row) {
  return piecesOf(row).flatMap(([phase, begin, end]) => {
    const own = row.policyIn[phase] || 0;
    if (!own) return [[phase, begin, end]];
    const from = end - (end - begin) * own / wholeOf(row, phase);
    return [[phase, begin, from], ["policy", from, end, phase]].filter((part) => part[2] > part[1]);
  });
}

// Bars of lives: `lives` are [label, row, offset in µs]; one trace per phase.
function lifeTraces(lives, unit) {
  const traces = DATA.phases.map((phase) => {
    const own = (row) => lifeOf(row).filter((part) => part[0] === phase);
    const bars = lives.flatMap(([label, row, offset]) => own(row).map(([, begin, end, of]) => [label, begin + offset, end - begin, of]));
    return {
      type: "bar", orientation: "h", name: phase, width: 0.7,
      y: bars.map((bar) => bar[0]), base: bars.map((bar) => bar[1] / unit), x: bars.map((bar) => bar[2] / unit),
      text: bars.map((bar) => duration(bar[2]) + (bar[3] ? ` of ${bar[3]}` : "")), textposition: "none",
      hovertemplate: `${phase}: %{text}<extra>%{y}</extra>`,
      marker: { color: LOOKS[phase][0], pattern: { shape: LOOKS[phase][1], fillmode: "overlay", fgcolor: "white", size: 5 } },
    };
  });
  return traces.filter((trace) => trace.x.length);
}

function drawLives(place, lives, title) {
  const ends = lives.map(([, row, offset]) => offset + Math.max(0, ...lifeOf(row).map((part) => part[2])));
  const unit = Math.max(1, ...ends) >= 1e7 ? 1e6 : 1e3;
  const labels = lives.map((life) => life[0]);
  return draw(place, lifeTraces(lives, unit), {
    barmode: "overlay", height: 100 + 20 * Math.max(2, lives.length), margin: { l: 40, r: 16, t: 34, b: 40 }, showlegend: true,
    xaxis: { title: { text: `${title} (${unit === 1e6 ? "s" : "ms"})` } },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", traceorder: "normal" },
    yaxis: { type: "category", automargin: true, categoryorder: "array", categoryarray: labels, range: [labels.length - 0.4, -0.6] },
  });
}

function requestColumns(run) {
  const has = (test) => requestsOf(run).some(test), columns = [], known = (value) => (value < 0 ? "" : value);
  const add = (title, value, text, number, hint) => columns.push({ title, value, text, number, hint });
  add("request", (row) => row.request, (row) => String(row.request), true, "its number in the trace, from 0");
  for (const name of ["client", "class", "session"]) {
    if (has((row) => row[name] !== "")) add(name, (row) => row[name], (row) => row[name], false);
  }
  if (has((row) => row.replica > 0)) add("replica", (row) => row.replica, (row) => String(row.replica), true);
  add("arrival", (row) => row.arrival, (row) => short(row.arrival / 1e6) + " s", true);
  for (const name of ["ttft", "tpot", "e2e"]) add(name.toUpperCase(), (row) => known(row[name]), (row) => duration(row[name]), true);
  for (const phase of DATA.phases) {
    if (has((row) => row.phases[phase] > 0)) add(phase, (row) => known(row.phases[phase]), (row) => duration(row.phases[phase]), true);
  }
  for (const name of COUNTS.slice(1)) {
    if (has((row) => row[name] > 0)) add(name.replace("_tokens", ""), (row) => row[name], (row) => short(row[name]), true, name);
  }
  add("state", (row) => row.state, (row) => row.state, false);
  return columns;
}

function limitsOf(run) {
  return Object.entries(DATA.results[run.result].slo_ms);
}

const misses = (run) => (row) => limitsOf(run).some(([metric, limit]) => row[metric] > limit * 1000);

// Completed requests from the 95th percentile of a metric on.
function slowest(run, metric) {
  const values = requestsOf(run).map((row) => row[metric]).filter((value) => value >= 0).sort((a, b) => a - b);
  const limit = values.length ? values[Math.floor(0.95 * (values.length - 1))] : Infinity;
  return (row) => row[metric] >= limit;
}

function kindsOf(run) {
  const kinds = [["all", "all requests"]], limits = limitsOf(run);
  const named = limits.map(([metric, limit]) => `${metric.toUpperCase()} ${short(limit)} ms`).join(", ");
  if (limits.length) kinds.push(["misses", `slow: misses the SLO (${named})`]);
  for (const metric of ["e2e", "ttft", "tpot"]) kinds.push([metric, `slow: slowest 5 % by ${metric.toUpperCase()}`]);
  if (requestsOf(run).some((row) => row.preemptions > 0)) kinds.push(["preempted", "preempted"]);
  if (requestsOf(run).some((row) => row.state !== "completed")) kinds.push(["lost", "not completed"]);
  return kinds;
}

function testOf(run, kind) {
  if (kind === "misses") return misses(run);
  if (kind === "preempted") return (row) => row.preemptions > 0;
  if (kind === "lost") return (row) => row.state !== "completed";
  return kind === "all" ? () => true : slowest(run, kind);
}

function valuesOf(run, name) {
  return [...new Set(requestsOf(run).map((row) => row[name]))].filter((value) => value !== "").sort((a, b) => compareValues(a, b));
}

function policyNote(run) {
  const share = `The KV policy takes ${short(100 * run.policy_frac)} % of this run's step time`;
  if (!run.lives.has_policy_times) return `${share}; its share of one request is not recorded.`;
  return `${share}. Of a request, policy is the work in its steps for all requests there; bars show it at the end of prefill and decode.`;
}

function lifeNote(run) {
  const lines = [];
  const total = run.lives.total, shown = requestsOf(run).length;
  if (shown < total) lines.push(`${shown.toLocaleString("en-US")} of ${total.toLocaleString("en-US")} requests are in the page.`);
  if (!run.lives.has_preempted_times) {
    lines.push("Times of preemptions are not known, and are part of prefill or decode: "
      + "a run with trace: {perfetto: true} has them, up to 64 MiB of trace.json.");
  }
  if (run.policy_frac > 0) lines.push(policyNote(run));
  return lines.join(" ");
}

class Explorer {
  constructor(place, runs) {
    this.runs = runs;
    this.run = runs[0];
    const names = runs.map((run, at) => [at, runName(run)]);
    const chosen = choice("run", "request-run", names, (value) => { this.run = runs[Number(value)]; this.reset(); });
    this.filters = el("span", { class: "controls" });
    const said = { placeholder: "request or session", "aria-label": "request or session" };
    this.search = el("input", { type: "search", id: "request-number", ...said, oninput: () => this.filter() });
    this.plot = el("div", { id: "request-lives" });
    this.note = el("p", { class: "note" });
    this.from = choice("bars from", "request-from", [["own", "each arrival"], ["clock", "the start of the run"]], () => this.draw());
    const table = el("div", {});
    place.append(el("div", { class: "controls" }, chosen.field, this.filters, this.search), table);
    place.append(el("div", { class: "controls" }, this.from.field), this.plot, this.note);
    const onRow = (row) => this.onPick && this.onPick(this.run, row), onPage = (rows) => { this.shown = rows; this.draw(); };
    this.table = new DataTable(table, [], [], { pageSize: MOST_LIVES, onRow, onPage });
    this.table.table.id = "request-table";
    [this.table.order, this.table.down] = ["E2E", true];  // opens on the slowest
    this.reset();
  }

  reset() {
    this.kind = choice("show", "request-kind", kindsOf(this.run), () => this.filter());
    const groups = ["client", "class"].map((name) => [name, valuesOf(this.run, name)]).filter(([, values]) => values.length);
    this.groups = groups.map(([name, values]) => {
      const options = [["", "every " + name], ...values.map((value) => [value, value])];
      return { name, ...choice(name, "request-" + name, options, () => this.filter()) };
    });
    this.filters.replaceChildren(this.kind.field, ...this.groups.map((group) => group.field));
    this.note.textContent = lifeNote(this.run);
    this.filter();
  }

  filter() {
    const test = testOf(this.run, this.kind.list.value), text = this.search.value.trim();
    const inGroups = (row) => this.groups.every((group) => group.list.value === "" || row[group.name] === group.list.value);
    const isNamed = (row) => text === "" || String(row.request) === text || row.session === text;
    const rows = requestsOf(this.run).filter((row) => test(row) && inGroups(row) && isNamed(row));
    this.table.show(rows, requestColumns(this.run));
  }

  draw() {
    const clock = this.from.list.value === "clock";
    const lives = this.shown.filter((row) => lifeOf(row).length).map((row) => [`request ${row.request}`, row, clock ? row.arrival : 0]);
    drawLives(this.plot, lives, clock ? "Time" : "Time since arrival");
  }
}

function requestSection() {
  const runs = DATA.runs.filter((run) => run.lives && run.lives.columns.request.length);
  if (!runs.length) return;
  const card = el("div", { class: "card" });
  section("requests", "Requests", card);
  const explorer = new Explorer(card, runs);
  if (runs.length > 1) explorer.onPick = compareSection(runs);
}
