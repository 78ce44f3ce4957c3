// Why a run is slow: what `kvlab why` says, the first panel.

function partsTrace(parts, name) {
  const all = Object.values(parts).reduce((sum, part) => sum + part, 0);
  return DATA.phases.filter((phase) => parts[phase] > 0).map((phase) => ({
    type: "bar", orientation: "h", name: phase, y: [name], x: [100 * parts[phase] / all], width: 0.6,
    hovertemplate: `${phase}: %{x:.3~g} %<extra></extra>`,
    marker: { color: LOOKS[phase][0], pattern: { shape: LOOKS[phase][1], fillmode: "overlay", fgcolor: "white", size: 5 } },
  }));
}

function triedTable(found) {
  const share = (t) => (t.attainment === null ? "" : short(100 * t.attainment) + " %");
  const row = (t) => el("tr", {}, el("td", {}, t.change), el("td", { class: "number" }, t.error ? "" : t.text),
    el("td", { class: "number" }, share(t)), el("td", {}, t.error ? "cannot run" : t.attains ? "attains" : ""),
    el("td", { class: "wrapped" }, t.error || t.set.join(" ")));
  const heads = ["tried", found.name, "requests within the SLO", "", "setting"].map((name) => el("th", {}, name));
  return el("table", { id: "why-tried" }, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...found.tried.map(row)));
}

function whySection() {
  const result = DATA.results.find((each) => each.why && each.why.runs.length);
  if (!result) return;
  const card = el("div", { class: "card" }), text = el("div", { id: "why-text" }), plot = el("div", { id: "why-parts" });
  const runs = result.why.runs, title = (run) => (run.title || result.name);
  section("why", "Why", card);
  if (result.why.best) card.append(el("p", { class: "verdict" }, result.why.best));
  const chosen = choice("run", "why-run", runs.map((run, at) => [at, title(run)]), () => show());
  if (runs.length > 1) card.append(el("div", { class: "controls" }, chosen.field));
  card.append(text, plot);
  function show() {
    const run = runs[Number(chosen.list.value)];
    text.replaceChildren(...run.lines.slice(0, 2).map((line) => el("p", {}, line)), ...(run.tried.length ? [triedTable(run)] : []));
    const layout = { barmode: "stack", height: run.slowest < run.requests ? 190 : 150, margin: { l: 120, r: 16, t: 34, b: 40 }, showlegend: true,
      xaxis: { title: { text: "Share of the time (%)" }, range: [0, 100] }, legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
      yaxis: { type: "category" } };
    const name = run.slowest === run.requests ? "all requests" : `${run.slowest} slowest`;
    const all = run.slowest < run.requests ? partsTrace(run.all_parts_ms, `all ${run.requests}`) : [];
    draw(plot, [...partsTrace(run.parts_ms, name), ...all.map((trace) => ({ ...trace, showlegend: !run.parts_ms[trace.name] }))], layout);
  }
  show();
}
