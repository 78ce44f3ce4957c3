// Timelines: one run, and a second one over it.

const PANELS = [["running", "Running<br>(requests)"], ["waiting", "Waiting<br>(requests)"], ["kv_used", "KV in use<br>(%)"],
  ["prompt_tokens_per_s", "Prompt<br>(tokens/s)"], ["output_tokens_per_s", "Output<br>(tokens/s)"]];

function timelineTraces(run, index) {
  return PANELS.map(([gauge], panel) => ({
    type: "scatter", mode: "lines", name: runName(run), legendgroup: String(index), showlegend: panel === 0,
    x: run.timeline.time_s, y: run.timeline[gauge],
    xaxis: "x", yaxis: panel ? "y" + (panel + 1) : "y", line: { color: RUN_COLOURS[index], width: 1.4, dash: index ? "dash" : "solid" },
    hovertemplate: "%{x:.4~g} s: %{y:.4~g}<extra>%{fullData.name}</extra>",
  }));
}

function timelineLayout(two) {
  const axes = { xaxis: { title: { text: "Time (s)" }, anchor: "y" + PANELS.length, rangemode: "tozero" } };
  PANELS.forEach(([gauge, title], panel) => {
    const top = 1 - panel / PANELS.length;
    axes["yaxis" + (panel ? panel + 1 : "")] = { title: { text: title, font: { size: 11 } }, domain: [top - 0.17, top], rangemode: "tozero",
      ...(gauge === "kv_used" ? { range: [0, 101] } : {}) };
  });
  const legend = { orientation: "h", y: 1.03, yanchor: "bottom" };
  return { ...axes, height: 640, margin: { l: 76, r: 16, t: 46, b: 46 }, showlegend: two, legend };
}

function timelineSection() {
  const runs = DATA.runs.filter((run) => run.timeline);
  if (!runs.length) return;
  const plot = el("div", { id: "timeline-plot" });
  const names = runs.map((run, at) => [at, runName(run)]);
  const first = choice("run", "timeline-run", names, show);
  const second = choice("with", "timeline-with", [["", "no other run"], ...names], show);
  const note = "All replicas of a run together. Waiting includes requests that are swapped out. "
    + "Every point is a mean over equally many samples, at most 250 points a run.";
  const controls = el("div", { class: "controls" }, first.field, second.field);
  section("timeline", "Timeline", el("div", { class: "card" }, controls, plot, el("p", { class: "note" }, note)));
  function show() {
    const chosen = [runs[Number(first.list.value)], ...(second.list.value === "" ? [] : [runs[Number(second.list.value)]])];
    draw(plot, chosen.flatMap(timelineTraces), timelineLayout(chosen.length > 1));
  }
  show();
}
